#include "kernels/cuda/operators/expert_calls.h"

#include "base/rows.h"
#include "kernels/cuda/operators/quantized_x.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"

namespace lathe::cuda {
namespace {

// A grouped GEMM: every expert multiplies its own rows.
GroupedMatmulCall expert_call(const RowsView& x, const WeightStack& w, std::span<const float> bias,
                              const MutableRowsView& out, const std::int32_t* offsets) {
  const PlainWeight strides = plain_weight(w);
  return {.x = x,
          .w = w.at(0),
          .out = out,
          .groups = w.count(),
          .offsets = offsets,
          .weight_stride = strides.data_stride * 8 / bits_of(w.dtype),
          .scale_stride = strides.scales_stride,
          .bias = data_or_null(bias)};
}

// With the stride that alloc_rows() gives rows of an arena.
MutableRowsView bf16_rows(std::int64_t rows, std::int64_t cols) {
  return {nullptr, DType::bf16, rows, cols, (cols + 31) / 32 * 32};
}

}  // namespace

GroupedMatmulCall up_call(const ExpertLayer& op, const RowsView& sorted,
                          const MutableRowsView& gated, const std::int32_t* offsets) {
  GroupedMatmulCall out =
      expert_call(sorted, op.experts->gate, op.experts->gate_bias, gated, offsets);
  out.activation = &op.activation;
  if (op.experts->up.count() > 0) out.up = op.experts->up.at(0);
  return out;
}

GroupedMatmulCall down_call(const ExpertLayer& op, const RowsView& gated,
                            const MutableRowsView& made, const std::int32_t* offsets) {
  return expert_call(gated, op.experts->down, op.experts->down_bias, made, offsets);
}

MatmulCall shared_up(const SharedExperts& s, const RowsView& x, const MutableRowsView& gated) {
  return {.x = x, .w = s.gate, .out = gated, .activation = &s.activation, .up = s.up};
}

MatmulCall shared_down(const SharedExperts& s, const RowsView& gated, float* sums) {
  return {.x = gated,
          .w = s.down,
          .out = {reinterpret_cast<std::byte*>(sums), DType::f32, gated.rows, s.down.rows,
                  s.down.rows}};
}

bool grouped_products_take(const ExpertLayer& op) {
  const auto rows = [&](std::int64_t cols) { return bf16_rows(op.x.rows, cols); };
  const std::int32_t offsets = 0;
  const MutableRowsView wide = rows(op.x.cols), gated = rows(op.experts->down.cols);
  return op.x.dtype == DType::bf16 &&
         grouped_matmul_takes(up_call(op, constant(wide), gated, &offsets)) &&
         grouped_matmul_takes(down_call(op, constant(gated), wide, &offsets));
}

bool experts_take_codes(const ExpertLayer& op, MatmulPrecision precision) {
  return takes_codes(precision, op.x, op.experts->gate.at(0)) &&
         takes_codes(precision, op.x, op.experts->down.at(0));
}

bool takes_shared(const ExpertLayer& op, const SharedExperts& shared, MatmulPrecision precision) {
  const std::int64_t rows = op.x.rows, choices = rows * op.choice.top_k;
  if (rows == 0 || rows > kDenseTokens || op.experts->gate.count() == 0 ||
      op.x.dtype != DType::bf16 || op.x.cols % 4 != 0 || op.out.row_stride % 4 != 0 ||
      reinterpret_cast<std::uintptr_t>(op.out.data) % 16 != 0 || shared.gate.columns != nullptr ||
      shared.up.columns != nullptr || shared.down.columns != nullptr ||
      !grouped_products_take(op)) {
    return false;
  }
  const bool factor = shared.factor.rows == 0 ||
                      (shared.factor.dtype == DType::bf16 && shared.factor.cols % 8 == 0);
  const bool coded = experts_take_codes(op, precision);
  if (!factor || (!coded && rounds_to_e4m3(precision, shared.gate.dtype))) return false;
  // More rows of codes are slower in the wider tiles that they would need.
  if (coded && rows > 16) return false;
  const std::int32_t offsets = 0;
  const MutableRowsView wide = bf16_rows(choices, op.x.cols);
  const MutableRowsView gated = bf16_rows(choices, op.experts->down.cols);
  const MutableRowsView own = bf16_rows(rows, shared.down.cols);
  DenseCall up{.call = shared_up(shared, op.x, own)};
  DenseCall down{.call = shared_down(shared, constant(own), nullptr)};
  GroupedMatmulCall routed_up = up_call(op, constant(wide), gated, &offsets);
  GroupedMatmulCall routed_down = down_call(op, constant(gated), wide, &offsets);
  routed_up.dense = &up;
  routed_down.dense = &down;
  return grouped_matmul_takes(routed_up) && grouped_matmul_takes(routed_down);
}

}  // namespace lathe::cuda
