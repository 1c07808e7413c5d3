// f32 GEMMs with x rounded as in precision bf16 or fp8: the reference for other devices'
// arithmetic.
#pragma once

#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

/// out (f32, x's shape) = x rounded as a GEMM in `precision` (bf16, fp8 or fp8_pow2) with weights
/// of dtype `weights` rounds it: to bf16, and if rounds_to_e4m3() then to e4m3, code times scale.
/// The scale of 128 consecutive elements is amax / 448 (fp8_pow2: rounded up to a power of two), or
/// 1 if all are 0.
void cpu_round_x(const Execution& execution, const RowsView& x, DType weights,
                 MatmulPrecision precision, const MutableRowsView& out);

/// cpu_matmul() in f32 with x rounded by cpu_round_x(). Needs no bf16 instructions.
void cpu_matmul_rounded(const Execution& execution, Arena& arena, MatmulPrecision precision,
                        std::span<const Product> products);

}  // namespace lathe
