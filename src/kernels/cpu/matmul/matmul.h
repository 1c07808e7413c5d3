// GEMMs with weights on the CPU.
//
// Order of sums. An output is the sum of its blocks of kDepthBlock elements of K, in ascending
// order. Within a block, lane i of a vector sums the elements k = i mod lanes with FMAs in
// ascending order, and a fixed tree sums the lanes. Every code path computes exactly this, so a
// row's bits depend neither on other rows nor on other outputs. They do depend on the SIMD target's
// vector length.
#pragma once

#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

/// matmul() of ops/matmul.h. Precision bf16 needs cpu_has_bf16_dot(); matmul_bf16.h has its order
/// of sums. With fp8, x is rounded first (matmul_rounded.h), which is slow. int8 needs
/// cpu_has_int8_dot(); matmul_int8.h has its rounding and its order of sums.
void cpu_matmul(const Execution& execution, Arena& arena, MatmulPrecision precision,
                std::span<const Product> products);

}  // namespace lathe
