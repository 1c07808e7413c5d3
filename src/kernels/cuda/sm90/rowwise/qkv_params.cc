#include "kernels/cuda/sm90/rowwise/qkv_params.h"

#include "kernels/cuda/sm90/codec/codec_launch.h"

namespace lathe::cuda {
namespace {

bool whole_words(const void* data, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

bool suits(const QkvRows& op, const CacheLayout& layout, std::int64_t dim, std::int64_t cols) {
  const std::int64_t count = op.q.rows;
  return (layout.kind() == LayoutKind::gqa_bf16 || layout.kind() == LayoutKind::gqa_fp8) &&
         (cols == 64 || cols == 128 || cols == 256) && dim == cols &&
         layout.row_elems() == op.kv.cols && op.kv.cols % cols == 0 && op.kv.rows == count &&
         std::ssize(op.positions) == count && std::ssize(op.slots) == count &&
         op.q_out.dtype == DType::bf16 && count * (op.q.cols + op.kv.cols) / cols <= INT32_MAX &&
         whole_words(op.q.data, 4 * op.q.row_stride) &&
         whole_words(op.kv.data, 4 * op.kv.row_stride) &&
         whole_words(op.q_out.data, 2 * op.q_out.row_stride) && whole_words(op.q_norm.data(), 0) &&
         whole_words(op.k_norm.data(), 0);
}

StoredHeads stored(const RunParams& run) { return {run.start, run.step, run.inverse}; }

}  // namespace

std::optional<QkvParams> qkv_params(const QkvRows& op, const PoolView& pool,
                                    const RopeTableView& table, ValueWords* counts) {
  const std::int64_t cols = op.q.cols / op.heads, key_cols = cols * op.kv_heads;
  if (!suits(op, pool.layout, table.dim, cols)) return {};
  if (!check_pool("pool", pool) || !check_scales("scales", op.scales)) return {};
  const EncodeParams rows = encode_params(read_only(op.kv), op.slots, pool, op.scales);
  if (!runs_aligned(rows.runs, rows.run_count)) return {};
  const bool two = rows.run_count == 2;  // else values of bf16 follow the keys
  if (two && rows.runs[1].first_chunk * kChunk != key_cols) return {};
  QkvParams p{.q = reinterpret_cast<const float*>(op.q.data),
              .kv = reinterpret_cast<const float*>(op.kv.data),
              .q_norm = op.q_norm.data(),
              .k_norm = op.k_norm.data(),
              .table = table.data,
              .positions = op.positions.empty() ? nullptr : &op.positions.data()->value,
              .slots = rows.slots,
              .q_out = reinterpret_cast<std::uint16_t*>(op.q_out.data),
              .q_stride = op.q.row_stride,
              .kv_stride = op.kv.row_stride,
              .q_out_stride = op.q_out.row_stride,
              .rows = op.q.rows,
              .heads = static_cast<std::int32_t>(op.heads),
              .kv_heads = static_cast<std::int32_t>(op.kv_heads),
              .value_heads = static_cast<std::int32_t>((op.kv.cols - key_cols) / cols),
              .cols = static_cast<std::int32_t>(cols),
              .heads_of_row = FastDiv((op.q.cols + op.kv.cols) / cols),
              .pages = rows.pages,
              .keys = stored(rows.runs[0]),
              .values = stored(rows.runs[two ? 1 : 0]),
              .counts = counts == nullptr ? nullptr : &counts->stored,
              .table_positions = static_cast<std::uint32_t>(table.positions),
              .eps = op.eps,
              .norms = op.norms,
              .interleaved = table.pairing == RopePairing::interleaved,
              .codes = rows.runs[0].kind == RunKind::e4m3_tensor};
  if (!two) p.values.start += 2 * key_cols;
  return p;
}

}  // namespace lathe::cuda
