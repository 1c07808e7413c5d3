#include "kernels/cuda/sm90/ragged/ragged_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "attn/check_args.h"
#include "attn/expansion.h"

namespace lathe::cuda {
namespace {

Result<void> check_problem_widths(const AttentionProblem& p) {
  if (p.kind != ProblemKind::dense_latent && p.kind != ProblemKind::sparse_latent) {
    return unsupported("problem.kind", "dense_latent or sparse_latent", std::string(name(p.kind)));
  }
  if (p.nope != kRaggedNope || p.rope != kRaggedRope) {
    return unsupported("problem", fmt::format("latents of {} and {}", kRaggedNope, kRaggedRope),
                       fmt::format("{} and {}", p.nope, p.rope), "the cpu device takes others");
  }
  if (auto ok = one_of("problem.qk_nope_head", kRaggedNopeHeads, p.qk_nope_head); !ok) return ok;
  return one_of("problem.v_head", kRaggedValueHeads, p.v_head);
}

std::int64_t most_keys(const AttendArgs& args) {
  std::int64_t keys = args.main.table_width * args.main.pool->page_size;
  if (args.max_kv_len > 0) keys = std::min(keys, args.max_kv_len);
  return std::min<std::int64_t>(keys, kGqaMostKeys);
}

/// Estimates, from the mean length, how many tiles of keys a pass's M blocks see for one head.
std::int64_t tiles_of_a_head(const AttendArgs& args, const RaggedShape& s) {
  const std::int64_t requests = std::max<std::int64_t>(std::ssize(args.kv_lens), 1);
  const std::int64_t rows = args.q.rows / requests;
  const std::int64_t keys = s.keys / std::max<std::int64_t>(s.requests, 1) - rows / 2;
  const std::int64_t blocks = s.requests * ((rows + 127) / 128);
  return blocks * std::max<std::int64_t>(keys / s.gqa.tile, 1);
}

void place_list(Placement& places, std::int64_t requests, const RaggedShape& shape,
                RaggedParams& p) {
  place_gqa_schedule(places, requests, shape.gqa, p.gqa.schedule);
  places.take(p.bases, requests + 1);
  places.take(p.extent, 2);
}
void place_pass(Placement& places, const AttentionProblem& problem, const RaggedShape& shape,
                RaggedParams& p) {
  place_gqa_partials(places, shape.gqa, problem.v_head, p.gqa);
  places.take(p.slots, shape.keys);
  places.take(p.latents, shape.keys * (problem.nope + problem.rope));
  places.take(p.expanded, shape.keys * shape.heads * (problem.qk_nope_head + problem.v_head));
}

}  // namespace

Result<void> check_ragged_call(const AttendArgs& args) {
  if (auto ok = check_ragged_shapes(args); !ok) return ok;
  if (args.execution.batch_invariant.value_or(false)) {
    return Error{ErrorCode::invalid_argument, "execution.batch_invariant",
                 "off: work is shared by the lengths of all requests", "on", ""};
  }
  if (auto ok = check_gqa_rows(args); !ok) return ok;
  const AttentionProblem& p = args.problem;
  if (auto ok = check_problem_widths(p); !ok) return ok;
  if (!args.main.pool || !kRaggedLayouts.contains(args.main.pool->layout.kind())) {
    return unsupported("main", "keys named by a page table of a pool of " + kRaggedLayouts.names(),
                       args.main.pool ? std::string(args.main.pool->layout.name()) : "none");
  }
  if (args.expansion.kv_b == nullptr) {
    return Error{ErrorCode::invalid_argument, "expansion.kv_b", "weights on the device", "none",
                 ""};
  }
  return {};
}

Result<RaggedShape> ragged_shape(const AttendArgs& args, int sms, const RaggedRoom& room) {
  const AttentionProblem& p = args.problem;
  const std::int64_t requests = std::ssize(args.kv_lens), longest = most_keys(args);
  const std::int32_t least = least_expanded_heads(p);
  const std::int64_t most = room.workspace / expanded_key_bytes(p, least);
  if (longest > most) {
    return Error{ErrorCode::exhausted, "max_kv_len", fmt::format("at most {} keys", most),
                 fmt::format("{}", longest), "use another kind of kernel for such requests"};
  }
  RaggedShape s;
  s.requests = requests;
  s.keys = std::max<std::int64_t>(requests * longest, 1);
  if (args.total_keys > 0) s.keys = std::min(s.keys, args.total_keys);
  if (s.keys > most) {
    s.requests = most / longest;
    s.keys = s.requests * longest;
  }
  s.gqa.tile = gqa_m128_tile(p.qk_nope_head + p.rope, p.v_head);
  const std::int64_t head_tiles = tiles_of_a_head(args, s);
  for (std::int32_t heads = least; heads <= p.heads; heads += least) {
    if (s.keys * expanded_key_bytes(p, heads) > room.workspace) break;
    if (p.heads % heads != 0) continue;
    s.heads = heads;
    if (heads * head_tiles >= sms * room.pass_tiles) break;
  }
  s.gqa.block_m = 128;
  s.gqa.item_cost = gqa_m128_item_cost(s.gqa.tile);
  s.gqa.workers = sms;
  s.gqa.partials = std::int64_t{2} * sms;
  s.gqa.max_blocks = s.requests + args.q.rows / s.gqa.block_m;
  RaggedParams unused;
  Placement list(nullptr), pass(nullptr);
  place_list(list, s.requests, s, unused);
  place_pass(pass, p, s, unused);
  s.list_bytes = list.bytes();
  s.pass_bytes = pass.bytes();
  return s;
}

AttendArgs requests_at(const AttendArgs& args, std::int64_t first, std::int64_t count) {
  AttendArgs a = args;
  const auto at = static_cast<std::size_t>(first), n = static_cast<std::size_t>(count);
  a.q_indptr = args.q_indptr.subspan(at, n + 1);
  a.kv_lens = args.kv_lens.subspan(at, n);
  const auto width = static_cast<std::size_t>(args.main.table_width);
  a.main.page_table = args.main.page_table.subspan(at * width, n * width);
  return a;
}

RaggedParams ragged_params(const AttendArgs& args, const RaggedShape& shape, std::int32_t head,
                           std::byte* list, std::byte* pass) {
  const AttentionProblem& problem = args.problem;
  const ConstPoolView& pool = *args.main.pool;
  const std::int32_t key_dim = problem.qk_nope_head + problem.rope;
  RaggedParams p;
  GqaParams& g = p.gqa;
  Placement of_list(list), of_pass(pass);
  place_list(of_list, shape.requests, shape, p);
  place_pass(of_pass, problem, shape, p);
  p.keys = static_cast<std::int32_t>(shape.keys);
  p.latent_width = problem.nope + problem.rope;
  p.head_width = problem.qk_nope_head + problem.v_head;
  g.max_blocks = static_cast<std::int32_t>(shape.gqa.max_blocks);
  g.workers = shape.gqa.workers;
  g.block_m = shape.gqa.block_m;
  g.tile = shape.gqa.tile;
  g.item_cost = shape.gqa.item_cost;
  g.requests = static_cast<std::int32_t>(std::ssize(args.kv_lens));
  g.q_indptr = args.q_indptr.data();
  g.kv_lens = args.kv_lens.data();
  g.max_keys = static_cast<std::int32_t>(most_keys(args));
  g.kv_heads = shape.heads;
  g.group = FastDiv(1);
  g.q = reinterpret_cast<const std::uint16_t*>(args.q.data) + std::int64_t{head} * key_dim;
  g.q_stride = args.q.row_stride;
  g.q_rows = static_cast<std::int32_t>(args.q.rows);
  g.table = reinterpret_cast<const std::int32_t*>(args.main.page_table.data());
  g.table_width = static_cast<std::int32_t>(args.main.table_width);
  g.page_size = FastDiv(pool.page_size);
  g.pages = static_cast<std::int32_t>(pool.pages);
  constexpr double kLog2e = 1.4426950408889634;
  g.scale = static_cast<float>(double{problem.scale} * kLog2e);
  if (!args.sink.empty()) g.sink = args.sink.data() + head;
  g.out = args.out.data + bytes_of(args.out.dtype, std::int64_t{head} * problem.v_head);
  g.out_f32 = args.out.dtype == DType::f32;
  g.out_stride = args.out.row_stride;
  g.lse = reinterpret_cast<float*>(args.lse.data);
  if (g.lse != nullptr) g.lse += head;
  g.lse_stride = args.lse.row_stride;
  g.lse_form = lse_form(args.lse_convention);
  return p;
}

}  // namespace lathe::cuda
