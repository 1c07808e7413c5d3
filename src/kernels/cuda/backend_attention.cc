// Attention: queries, keys and the cache.
#include <optional>

#include "base/rows.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operators/attend_selected.h"
#include "kernels/cuda/operators/compress.h"
#include "kernels/cuda/operators/delta_rule.h"
#include "kernels/cuda/operators/select_keys.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/rowwise/attention_rows_params.h"

namespace lathe::cuda {

Result<void> CudaBackend::rope_write(const OpsContext&, const lathe::RopeWrite& op,
                                     const PoolView& pool) {
  if (auto ok = flush(); !ok) return ok;
  RopeWrite own{.k = op.k,
                .q = op.q,
                .positions = op.positions,
                .slots = op.slots,
                .place = op.place,
                .scales = op.scales,
                .q_scale = op.q_scale,
                .q_out = op.q_out};
  if (op.table != nullptr) {
    auto table = tables_.of(*op.table, stream_);
    if (!table) return table.error();
    own.table = *table;
  }
  auto counts = counts_.of(op.tally, stream_);
  if (!counts) return counts.error();
  own.counts = *counts;
  return rope_quantize_write(own, pool, stream_);
}

Result<void> CudaBackend::rotate_rows(const OpsContext&, const RopeTable& table,
                                      std::span<const LocalPos> positions,
                                      const MutableRowsView& rows, std::int64_t heads,
                                      std::int64_t first) {
  return rotate(table, positions, rows, heads, first, RopeDirection::forward);
}

Result<void> CudaBackend::unrotate_rows(const OpsContext&, const RopeTable& table,
                                        std::span<const LocalPos> positions,
                                        const MutableRowsView& rows, std::int64_t heads,
                                        std::int64_t first) {
  return rotate(table, positions, rows, heads, first, RopeDirection::inverse);
}

Result<bool> CudaBackend::prepare_qkv(const OpsContext&, const QkvRows& op, const PoolView& pool) {
  auto table = tables_.of(*op.table, stream_);
  if (!table) return table.error();
  const auto counts = counts_.of(op.tally, stream_);
  if (!counts) return counts.error();
  const std::optional<QkvParams> params = qkv_params(op, pool, *table, *counts);
  if (params) put("prepare_qkv", op.kv, launch_qkv, *params);
  return params.has_value();
}

Result<bool> CudaBackend::prepare_latent(const OpsContext& ops, const LatentRows& op,
                                         const PoolView& pool) {
  // Absorbed heads go through a bf16 GEMM; plain GEMMs read q in f32.
  if (op.absorbs != nullptr && plain_products_) return false;
  if (op.table == nullptr) return false;  // the kernel rotates
  auto table = tables_.of(*op.table, stream_);
  if (!table) return table.error();
  if (op.norms_queries) {
    const std::optional<WholeRowsParams> params = whole_rows_params(op, pool, *table);
    if (params) put("prepare_latent", op.k, launch_whole_rows, *params);
    return params.has_value();
  }
  const auto counts = counts_.of(op.tally, stream_);
  if (!counts) return counts.error();
  const Arena::Scope scope(*ops.tensors);
  MutableRowsView nope;
  if (op.absorbs != nullptr) {
    nope = alloc_rows(*ops.tensors, op.q.rows, op.heads * op.qk_nope, DType::bf16);
  }
  const auto params = latent_rows_params(op, pool, *table, *counts, nope);
  if (!params) return false;
  put("prepare_latent", op.k, launch_latent_rows, *params);
  if (op.absorbs != nullptr) {
    head_matmul(ops, {constant(nope), op.qk_nope, op.absorbs, op.q_out, op.q_out.cols / op.heads});
  }
  return true;
}

Result<std::optional<IndexCodes>> CudaBackend::prepare_index(const OpsContext& ops,
                                                             const IndexerRows& op,
                                                             const PoolView& pool) {
  auto table = tables_.of(*op.table, stream_);
  if (!table) return table.error();
  auto params = indexer_rows_params(op, pool, *table);
  if (!params) return std::optional<IndexCodes>();
  PagesParams& codes = params->queries.pages;
  if (op.q.rows > 0) codes.data = ops.tensors->take(op.q.rows * codes.stride);
  put("prepare_index", op.k.rows > 0 ? op.k : op.q, launch_indexer_rows, *params);
  return std::optional(IndexCodes{codes.data});
}

Result<void> CudaBackend::compress(const OpsContext&, const Compress& op, const PoolView& pool) {
  if (auto ok = start_queued(); !ok) return ok;
  auto table = tables_.of(*op.table, stream_);
  if (!table) return table.error();
  const auto params = compress_params(op, *table, pool);
  if (!params) return params.error();
  return held_.hold_compress(*params, stream_);
}

Result<void> CudaBackend::delta_rule(const OpsContext& ops, const DeltaRule& op) {
  if (auto ok = flush(); !ok) return ok;
  return cuda::delta_rule(op, *ops.tensors, stream_);
}

Result<void> CudaBackend::write_rows(const OpsContext&, const RowsView& rows,
                                     std::span<const Slot> slots, const PoolView& pool,
                                     const TensorScales& scales, ValueTally* tally) {
  if (auto ok = flush(); !ok) return ok;
  const auto counts = counts_.of(tally, stream_);
  if (!counts) return counts.error();
  return encode_rows(rows, slots, pool, scales, stream_, *counts);
}

Result<void> CudaBackend::select_keys(const OpsContext& ops, const SelectKeys& op) {
  if (auto ok = flush(); !ok) return ok;
  return cuda::select_keys(op, *ops.tensors, stream_);
}

Result<void> CudaBackend::attend(const OpsContext& ops, const AttendOp& op) {
  if (auto ok = flush(); !ok) return ok;
  const auto kernel = kernel_of(*op.step->route);
  if (!kernel) return kernel.error();
  if (op.step->route->adapter) {
    return attend_selected(op, (*kernel)->attend, execution(ops), *ops.tensors, stream_);
  }
  const Arena::Scope scope(*ops.tensors);
  AttendOp listed = op;
  if (const std::int64_t entries = entries_width(*op.plan, *op.step); entries > 0) {
    const auto slots = list_entries(*op.step, *op.compressed, entries, *ops.tensors, stream_);
    if (!slots) return slots.error();
    listed.slots = *slots;
    listed.slots_width = entries;
  }
  return (*kernel)->attend(attend_args(listed, execution(ops)));
}

Result<void> CudaBackend::rotate(const RopeTable& table, std::span<const LocalPos> positions,
                                 const MutableRowsView& rows, std::int64_t heads,
                                 std::int64_t first, RopeDirection direction) {
  if (auto ok = flush(); !ok) return ok;
  auto view = tables_.of(table, stream_);
  if (!view) return view.error();
  return apply_rope(*view, positions, rows, heads, first, direction, stream_);
}

Execution CudaBackend::execution(const OpsContext& ops) {
  Execution out;
  out.batch_invariant = ops.execution.batch_invariant;
  out.stream = stream_.get();
  out.scratch = &scratch_;
  return out;
}

}  // namespace lathe::cuda
