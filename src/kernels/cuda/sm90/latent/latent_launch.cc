#include "kernels/cuda/sm90/latent/latent_launch.h"

#include <algorithm>

namespace lathe::cuda {
namespace {

LatentSource source_params(const KeySource& s, const AttentionProblem& problem) {
  LatentSource out;
  if (s.pool) {
    const ConstPoolView& pool = *s.pool;
    out.pages = pool.data;
    out.page_stride = pool.page_stride;
    out.page_size = FastDiv(pool.page_size);
    out.pages_count = static_cast<std::int32_t>(pool.pages);
    if (pool.layout.kind() == LayoutKind::v4_fp8) {
      out.scales = std::int64_t{pool.page_size} * (problem.nope + 2 * problem.rope);
    }
  } else {
    out.pages = s.compact.data;
    out.page_stride = s.compact.row_stride * 2;
    out.page_size = FastDiv(1);
    out.pages_count = static_cast<std::int32_t>(s.compact.rows);
  }
  if (!s.indices.empty() || s.index_width > 0) {
    out.indices = s.indices.data();
    out.width = static_cast<std::int32_t>(s.index_width);
    if (!s.index_lengths.empty()) out.lengths = s.index_lengths.data();
    // A call that is only planned has no list entries yet, but null would mean that it has no list.
    if (s.indices.empty()) out.indices = out.lengths;
  }
  if (s.table_width > 0) {
    out.table = reinterpret_cast<const std::int32_t*>(s.page_table.data());
    out.table_width = static_cast<std::int32_t>(s.table_width);
  }
  return out;
}

static_assert(sizeof(LatentItem) == sizeof(WorkItem));

void take_list(LatentParams& p, const WorkBuffers& list, const LatentShares& shares) {
  p.items = reinterpret_cast<const LatentItem*>(list.items.data());
  p.worker_items = list.worker_items.data();
  p.work_tile_items = list.row_items.data();
  p.workers = shares.work.workers;
  p.cut = shares.cut();
}

}  // namespace

LatentParams latent_params(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule) {
  LatentParams p;
  const AttentionProblem& problem = args.problem;
  p.work_tiles = static_cast<std::int32_t>(schedule.cut.work_tiles());
  p.m_blocks = schedule.cut.m_blocks;
  take_list(p, schedule.list, schedule.cut.all);
  if (schedule.cut.shared) {
    p.split_tiles = schedule.split_tiles.data();
    p.split_last = static_cast<std::int32_t>(schedule.cut.split_entries() - 1);
    p.cut = true;
  }
  p.q = args.q.data;
  p.q_stride = args.q.row_stride;
  p.q_rows = static_cast<std::int32_t>(args.q.rows);
  p.heads = problem.heads;
  p.by_heads = FastDiv(problem.heads);
  p.q_indptr = args.q_indptr.data();
  p.kv_lens = args.kv_lens.data();
  if (!row_request.empty()) p.row_request = row_request.data();
  p.dense = args.main.index_width == 0;
  // Rows of a prefill, and many M blocks, read keys again that are in L2. Rows of a decode step
  // rarely do, and copies that L2 evicts first are a tenth faster.
  constexpr std::int64_t kSharing = 16;  // rows of a request
  p.once = p.m_blocks <= 2 && args.max_request_rows < kSharing &&
           args.q.rows < kSharing * std::ssize(args.kv_lens);
  // A prefill by lists reads queries once, and queries and outputs together exceed L2.
  p.passing = !p.dense && !p.once && !p.cut;
  p.main = source_params(args.main, problem);
  if (problem.two_sources()) p.extra = source_params(args.extra, problem);
  const double log2e = 1.4426950408889634;
  p.scale = static_cast<float>(problem.scale * double{args.main.key_scale} *
                               (args.q.dtype == DType::e4m3 ? double{args.q_scale} : 1.0) * log2e);
  p.value_scale = args.main.key_scale;
  p.q_scale = args.device_q_scale;
  p.key_scale = args.main.device_key_scale;
  if (!args.sink.empty()) p.sink = args.sink.data();
  p.out = reinterpret_cast<std::uint16_t*>(args.out.data);
  p.out_stride = args.out.row_stride;
  p.lse = reinterpret_cast<float*>(args.lse.data);
  p.lse_stride = args.lse.row_stride;
  p.lse_form = lse_form(args.lse_convention);
  return p;
}

LatentSharing latent_sharing(const LatentSchedule& schedule) {
  const LatentCut& cut = schedule.cut;
  return {.costs = cut.costs,
          .step = cut.all.work.block,
          .fixed = cut.fixed,
          .keys = static_cast<std::int32_t>(std::min<std::int64_t>(cut.keys, INT32_MAX)),
          .workers = cut.all.work.workers,
          .partials = static_cast<std::int32_t>(cut.shared_parts),
          .items = reinterpret_cast<LatentItem*>(schedule.list.items.data()),
          .worker_items = schedule.list.worker_items.data(),
          .split_tiles = schedule.split_tiles.data(),
          .split_room = static_cast<std::int32_t>(cut.split_entries())};
}

LatentParams first_work_tiles(const LatentParams& p, const LatentSchedule& schedule) {
  LatentParams first = p;
  first.work_tiles = static_cast<std::int32_t>(schedule.cut.all.work_tiles);
  return first;
}

LatentParams last_work_tiles(const LatentParams& p, const LatentSchedule& schedule, DType q) {
  LatentParams last = p;
  const std::int64_t row = schedule.cut.all.work_tiles;
  last.work_tiles = static_cast<std::int32_t>(schedule.cut.tail.work_tiles);
  take_list(last, schedule.tail, schedule.cut.tail);
  last.early = true;
  last.passing = false;
  last.q = static_cast<const std::byte*>(p.q) + bytes_of(q, row * p.q_stride);
  last.q_rows -= static_cast<std::int32_t>(row);
  last.out += row * p.out_stride;
  if (p.lse != nullptr) last.lse += row * p.lse_stride;
  if (p.row_request != nullptr) last.row_request += row;
  for (LatentSource* s : {&last.main, &last.extra}) {
    if (s->indices != nullptr) s->indices += row * s->width;
    if (s->lengths != nullptr) s->lengths += row;
  }
  return last;
}

}  // namespace lathe::cuda
