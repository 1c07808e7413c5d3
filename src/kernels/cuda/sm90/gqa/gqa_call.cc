#include "kernels/cuda/sm90/gqa/gqa_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "attn/check_args.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/gqa/gqa_shared.h"

namespace lathe::cuda {
namespace {

Result<void> aligned(const char* field, const void* data, std::int64_t stride_bytes,
                     std::int64_t count) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && (count < 2 || stride_bytes % 16 == 0)) {
    return {};
  }
  return Error{ErrorCode::invalid_argument, field, "an address and strides of whole 16 bytes",
               fmt::format("{}, {} bytes", data, stride_bytes), ""};
}

std::int64_t up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

// With lists, each row is a request of its own (GqaParams::indices).
std::int64_t requests_of(const AttendArgs& args) {
  return args.main.index_width > 0 ? args.q.rows : std::ssize(args.kv_lens);
}

}  // namespace

GqaForm gqa_form(const AttentionProblem& p) {
  if (p.kind != ProblemKind::grouped_query) return {1, p.heads, p.nope + p.rope, p.nope, true};
  return {p.kv_heads, p.heads / p.kv_heads, p.head_dim, p.v_head_dim, false};
}

void place_gqa_schedule(Placement& places, std::int64_t requests, const GqaShape& shape,
                        GqaSchedule& s) {
  places.take(s.totals, 1);
  places.take(s.request_blocks, requests + 1);
  places.take(s.blocks, shape.max_blocks);
  places.take(s.costs, shape.max_blocks + 1);
  places.take(s.starts, shape.workers);
}

void place_gqa_partials(Placement& places, const GqaShape& shape, std::int32_t value_dim,
                        GqaParams& p) {
  const std::int64_t rows = shape.partials * shape.block_m;
  places.take(p.partial_lse, rows);
  places.take(p.partial_out, rows * value_dim);
}

Result<void> check_gqa_rows(const AttendArgs& args) {
  if (args.q.dtype != DType::bf16) {
    return unsupported("q.dtype", "bf16", std::string(name(args.q.dtype)));
  }
  if (args.out.dtype != DType::bf16 && args.out.dtype != DType::f32) {
    return unsupported("out.dtype", "bf16 or f32", std::string(name(args.out.dtype)));
  }
  if (args.lse.data != nullptr && args.lse.dtype != DType::f32) {
    return unsupported("lse.dtype", "f32", std::string(name(args.lse.dtype)));
  }
  if (auto ok = aligned("q", args.q.data, bytes_of(args.q.dtype, args.q.row_stride), args.q.rows);
      !ok) {
    return ok;
  }
  const std::int64_t requests = std::ssize(args.kv_lens);
  const std::int64_t least =
      std::max<std::int64_t>(requests == 0 ? args.q.rows : up(args.q.rows, requests), 1);
  if (args.max_request_rows < least || (requests == 0 && args.q.rows > 0)) {
    return Error{
        ErrorCode::invalid_argument, "max_request_rows",
        fmt::format("at least {} ({} rows over {} requests)", least, args.q.rows, requests),
        fmt::format("{}", args.max_request_rows), ""};
  }
  if (args.max_kv_len < 0) {
    return Error{ErrorCode::invalid_argument, "max_kv_len", "0 or more",
                 fmt::format("{}", args.max_kv_len), ""};
  }
  return {};
}

namespace {

Result<void> check_heads(const AttentionProblem& p) {
  if (p.head_dim == kGqaWideKey && p.v_head_dim == kGqaWideKeyValue) return {};
  if (auto ok = one_of("problem.head_dim", kGqaHeadDims, p.head_dim); !ok) return ok;
  if (p.v_head_dim == p.head_dim) return {};
  return unsupported("problem.v_head_dim", fmt::format("the head_dim {}", p.head_dim),
                     fmt::format("{}", p.v_head_dim), "the cpu device takes others");
}

Result<void> check_latents(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  const bool dense = p.kind == ProblemKind::dense_latent && args.main.index_width == 0;
  const bool listed = p.kind == ProblemKind::sparse_latent && p.nope == kGqaListedLatent;
  if (!(dense || listed) || !is_gqa_latent(p.nope, p.rope)) {
    return unsupported("problem",
                       "dense_latent of 256 + 64, 256 + 32 or 128 + 32 dimensions, or "
                       "sparse_latent of 128 + 32",
                       fmt::format("{} of {} + {}", name(p.kind), p.nope, p.rope));
  }
  if (args.main.pool && args.main.pool->layout.kind() != LayoutKind::mla_bf16) {
    return unsupported("main.pool.layout", "mla_bf16",
                       std::string(name(args.main.pool->layout.kind())));
  }
  return {};
}

}  // namespace

Result<void> check_gqa_call(const AttendArgs& args) {
  const bool latent = args.problem.kind != ProblemKind::grouped_query;
  if (auto ok = latent ? check_latent_shapes(args) : check_gqa_shapes(args); !ok) return ok;
  if (auto ok = check_gqa_rows(args); !ok) return ok;
  if (auto ok = latent ? check_latents(args) : check_heads(args.problem); !ok) return ok;
  if ((args.main.index_width > 0 && !latent) || !args.main.pool) {
    return unsupported("main", "keys named by a page table of a pool",
                       args.main.pool ? "an index list" : "a compact buffer", "");
  }
  if (auto ok = check_gqa_prefixes(args); !ok) return ok;
  const ConstPoolView& pool = *args.main.pool;
  // Listed rows are copied one by one, so pages of any size do.
  if (args.main.index_width == 0) {
    if (auto ok = one_of("main.pool.page_size", kGqaPages, pool.page_size); !ok) return ok;
  }
  const AttentionProblem& p = args.problem;
  if (p.chunked && p.window % pool.page_size != 0) {
    return unsupported("problem.window",
                       fmt::format("chunks of whole pages of {} tokens", pool.page_size),
                       fmt::format("{}", p.window), "smaller pages, or the cpu device");
  }
  return aligned("main.pool", pool.data, pool.page_stride, pool.pages);
}

namespace {

std::int64_t keys_bound(const AttendArgs& args) {
  std::int64_t keys = args.main.table_width * args.main.pool->page_size;
  if (args.max_kv_len > 0) keys = std::min(keys, args.max_kv_len);
  if (args.main.index_width > 0) keys = args.main.index_width;
  return std::min<std::int64_t>(keys, kGqaMostKeys);
}

// Most pieces of a request: as gqa_piece() (gqa_schedule.cuh) cuts.
std::int64_t most_pieces(const AttendArgs& args, std::int64_t tile) {
  std::int64_t keys = keys_bound(args);
  if (args.problem.window > 0) {
    keys = std::min(keys, args.problem.window + args.max_request_rows + tile);
  }
  const std::int64_t tiles = std::max<std::int64_t>(up(keys, tile), 1);
  return std::min<std::int64_t>(kGqaFixedPieces, up(tiles, kGqaFixedKeys / tile));
}

// Most M blocks that chunks add: one wherever a request's rows enter another chunk.
std::int64_t chunk_blocks(const AttendArgs& args) {
  if (!args.problem.chunked || args.max_request_rows < 2) return 0;
  return requests_of(args) + args.q.rows / args.problem.window;
}

}  // namespace

GqaShape gqa_shape(const AttendArgs& args, int sms) {
  const GqaForm p = gqa_form(args.problem);
  const std::int64_t group = p.group, requests = requests_of(args);
  const std::int64_t most = args.main.index_width > 0 ? 1 : args.max_request_rows;
  const bool fixed = args.execution.batch_invariant.value_or(false);
  const std::int64_t m_rows = (fixed ? most : std::min(most, args.q.rows)) * group;
  const bool fp8 = args.main.pool->layout.kind() == LayoutKind::gqa_fp8;
  GqaShape s;
  const int swapped = gqa_swapped_rows(p.value_dim);
  while (s.block_m < m_rows && s.block_m < swapped) s.block_m *= 2;
  if (m_rows > 64 && swapped == 64 && !fp8) {
    s.block_m = 128;
    s.tile = gqa_m128_tile(p.key_dim, p.value_dim);
    s.item_cost = gqa_m128_item_cost(s.tile);
  }
  if (fp8 && gqa_is_mma_fp8(p.key_dim, p.value_dim, s.block_m)) {
    s.tile = gqa_mma_fp8_tile(p.key_dim, s.block_m);
  }
  s.workers = sms * gqa_blocks_per_sm(p.key_dim, p.value_dim, s.block_m, fp8);
  s.max_blocks = requests + args.q.rows * group / s.block_m + chunk_blocks(args);
  s.partials = std::int64_t{2} * s.workers;
  s.pairs = gqa_has_pairs(p.key_dim, p.value_dim, p.kv_heads, m_rows, fp8);
  s.kv_heads = s.pairs ? p.kv_heads / 2 : p.kv_heads;
  if (fixed) {
    const bool few = most <= (args.problem.chunked ? 1 : kGqaFixedRows) &&
                     m_rows <= kGqaFixedMRows && m_rows <= s.block_m;
    const std::int64_t pieces = few ? most_pieces(args, s.tile) : 1;
    s.pieces = pieces > 1 ? kGqaFixedPieces : 1;
    if (pieces > 1) s.max_blocks = requests * pieces;
    s.partials = pieces > 1 ? s.max_blocks * s.kv_heads : 0;
  }
  if (s.pairs) s.block_m *= 2;
  GqaParams unused;
  Placement schedule(nullptr), partials(nullptr);
  place_gqa_schedule(schedule, requests, s, unused.schedule);
  place_gqa_partials(partials, s, p.value_dim, unused);
  s.schedule_bytes = schedule.bytes();
  s.partial_bytes = partials.bytes();
  return s;
}

std::int64_t gqa_workspace_bytes(const AttendArgs& most, int sms) {
  // Fewer rows use smaller blocks, of which there are more, and more are resident. Doubling the
  // rows visits every block size.
  std::int64_t bytes = gqa_shape(most, sms).bytes();
  AttendArgs fewer = most;
  for (std::int64_t rows = 1; rows < most.max_request_rows; rows *= 2) {
    fewer.max_request_rows = rows;
    bytes = std::max(bytes, gqa_shape(fewer, sms).bytes());
  }
  return bytes;
}

GqaParams gqa_params(const AttendArgs& args, const GqaShape& shape, std::byte* schedule,
                     std::byte* partials) {
  const AttentionProblem& problem = args.problem;
  const GqaForm form = gqa_form(problem);
  const ConstPoolView& pool = *args.main.pool;
  GqaParams p;
  Placement of_schedule(schedule), of_partials(partials);
  place_gqa_schedule(of_schedule, requests_of(args), shape, p.schedule);
  place_gqa_partials(of_partials, shape, form.value_dim, p);
  p.max_blocks = static_cast<std::int32_t>(shape.max_blocks);
  p.workers = shape.workers;
  p.block_m = shape.block_m;
  p.tile = shape.tile;
  p.item_cost = shape.item_cost;
  p.pieces = shape.pieces;
  p.piece_tiles = kGqaFixedKeys / shape.tile;
  p.requests = static_cast<std::int32_t>(requests_of(args));
  p.q_indptr = args.q_indptr.data();
  p.kv_lens = args.kv_lens.data();
  p.max_keys = static_cast<std::int32_t>(keys_bound(args));
  if (args.main.index_width > 0) {
    p.index_width = p.max_keys;
    if (!args.main.index_lengths.empty()) p.index_lengths = args.main.index_lengths.data();
    // A call that is only planned has no entries yet, but null would mean that there is no list.
    p.indices = args.main.indices.empty() ? p.kv_lens : args.main.indices.data();
  }
  if (problem.window > 0) {
    (problem.chunked ? p.chunk : p.window) = std::min(problem.window, kGqaMostKeys);
  }
  p.pairs = shape.pairs;
  p.kv_heads = shape.kv_heads;
  p.group = FastDiv(shape.pairs ? 2 * form.group : form.group);
  p.q = reinterpret_cast<const std::uint16_t*>(args.q.data);
  p.q_stride = args.q.row_stride;
  p.q_head = form.key_dim;
  p.q_rows = static_cast<std::int32_t>(args.q.rows);
  p.table = reinterpret_cast<const std::int32_t*>(args.main.page_table.data());
  p.table_width = static_cast<std::int32_t>(args.main.table_width);
  p.page_size = FastDiv(pool.page_size);
  p.pages = static_cast<std::int32_t>(pool.pages);
  p.page_stride = pool.page_stride;
  const Part& key = *pool.layout.find(form.latent ? PartRole::nope : PartRole::key);
  p.token_bytes = p.value_bytes = pool.layout.plane_bytes(key.plane);
  p.keys = p.values = pool.data + pool.layout.offset_of(key, pool.page_size, 0);
  if (!form.latent) {
    const Part& value = *pool.layout.find(PartRole::value);
    p.values = pool.data + pool.layout.offset_of(value, pool.page_size, 0);
    p.value_bytes = pool.layout.plane_bytes(value.plane);
  }
  p.once = p.pieces > 1 || shape.max_blocks - chunk_blocks(args) <= 2 * p.requests;
  constexpr double kLog2e = 1.4426950408889634;
  p.scale = static_cast<float>(double{problem.scale} * double{args.main.key_scale} * kLog2e);
  p.value_scale = args.main.value_scale;
  if (!args.sink.empty()) p.sink = args.sink.data();
  p.out = args.out.data;
  p.out_f32 = args.out.dtype == DType::f32;
  p.out_stride = args.out.row_stride;
  p.lse = reinterpret_cast<float*>(args.lse.data);
  p.lse_stride = args.lse.row_stride;
  p.lse_form = lse_form(args.lse_convention);
  return p;
}

}  // namespace lathe::cuda
