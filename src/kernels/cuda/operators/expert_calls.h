// The GEMMs of an expert layer: grouped ones for routed experts, dense ones for shared experts.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/moe.h"
#include "kernels/shared_experts.h"

namespace lathe::cuda {

/// activation(gate, up) of the routed experts, in one grouped GEMM: every expert multiplies its own
/// rows of `sorted`. offsets: as GroupedMatmulCall::offsets.
GroupedMatmulCall up_call(const ExpertLayer& op, const RowsView& sorted,
                          const MutableRowsView& gated, const std::int32_t* offsets);
/// made = down `gated`, of the routed experts.
GroupedMatmulCall down_call(const ExpertLayer& op, const RowsView& gated,
                            const MutableRowsView& made, const std::int32_t* offsets);

/// activation(gate, up) of the shared experts; x of the routed experts' type.
MatmulCall shared_up(const SharedExperts& s, const RowsView& x, const MutableRowsView& gated);
/// The shared experts' output by parts of K. sums: [parts, rows, n] f32.
MatmulCall shared_down(const SharedExperts& s, const RowsView& gated, float* sums);

/// Whether grouped GEMMs support x and the routed experts' weights.
bool grouped_products_take(const ExpertLayer& op);

/// Whether the inputs of the routed experts' GEMMs are quantized. Precondition: experts.
bool experts_take_codes(const ExpertLayer& op, MatmulPrecision precision);

/// Whether the grouped GEMMs' launches can have the shared experts' GEMMs: up to kDenseTokens
/// rows, and weights of the experts' format. A layer of few rows then has two to four launches
/// less.
bool takes_shared(const ExpertLayer& op, const SharedExperts& shared, MatmulPrecision precision);

inline const float* data_or_null(std::span<const float> v) {
  return v.empty() ? nullptr : v.data();
}

}  // namespace lathe::cuda
