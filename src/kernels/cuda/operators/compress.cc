#include "kernels/cuda/operators/compress.h"

#include <fmt/format.h>

#include "base/rows.h"
#include "kernels/cuda/common/device_rows.h"

namespace lathe::cuda {
namespace {

template <class T>
const std::int32_t* numbers(std::span<const T> list) {
  static_assert(sizeof(T) == sizeof(std::int32_t));
  return reinterpret_cast<const std::int32_t*>(list.data());
}

}  // namespace

Result<CompressParams> compress_params(const Compress& op, const RopeTableView& table,
                                       const PoolView& pool) {
  const StepView& step = *op.step;
  if (op.dim > kCompressMostDim) {
    return Error{ErrorCode::unsupported, "entry", fmt::format("at most {} wide", kCompressMostDim),
                 fmt::format("{}", op.dim), "--device cpu"};
  }
  const auto entries = entry_pool(pool);
  if (!entries) return entries.error();
  return CompressParams{.kv = floats(op.kv),
                        .gate = floats(op.gate),
                        .kv_stride = op.kv.row_stride,
                        .gate_stride = op.gate.row_stride,
                        .position_bias = op.position_bias.data(),
                        .norm = op.norm.empty() ? nullptr : op.norm.data(),
                        .norm_eps = op.norm_eps,
                        .table = table.data,
                        .rope = table.dim,
                        .pairing = table.pairing,
                        .hadamard = op.hadamard,
                        .ratio = op.ratio,
                        .halves = op.halves,
                        .dim = op.dim,
                        .positions = numbers(step.positions),
                        .row_request = numbers(step.row_request),
                        .q_indptr = numbers(step.q_indptr),
                        .kv_lens = numbers(step.kv_lens),
                        .out_slots = numbers(step.compressed_out_slots),
                        .state_before = numbers(step.state_before),
                        .state_table = reinterpret_cast<const std::int32_t*>(step.state_table.data),
                        .state_width = step.state_table.width,
                        .state_tokens = step.state_tokens,
                        .state = reinterpret_cast<float*>(op.state.data),
                        .state_stride = op.state.bank_bytes / 4,
                        .state_banks = op.state.banks,
                        .last_states = last_states(step, op.state),
                        .rows = step.rows,
                        .pool = *entries};
}

}  // namespace lathe::cuda
