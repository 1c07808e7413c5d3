// Products by the CPU's dot products of bf16 pairs (AVX512_BF16), for bf16, e4m3 and e2m1
// weights.
//
// Arithmetic. x is rounded to bf16 (nearest even); for e4m3 weights it is multiplied by the factor
// of its block of the weight before, in f32, so that the weights are bare codes, which bf16 has
// exactly; e2m1 codes are multiplied by their scale, a power of two, which bf16 has exactly, too.
// An output is the sum of its blocks of kDepthBlock elements of K in ascending order; inside a
// block each of 16 f32 lanes sums its pairs in ascending order, and one fixed tree sums the lanes.
// Every path computes exactly this, so that a row's bits depend neither on other rows nor on other
// outputs. The instruction takes subnormal numbers as zeros and makes none; it rounds to nearest
// even.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul/matmul_slice.h"

namespace lathe {

/// Whether this CPU has the instructions (AVX512_BF16, and AVX512_VBMI to widen e4m3), and the
/// compiler knows them.
bool cpu_has_bf16_dot();

/// Whether weights of this dtype have products by bf16 pairs: those that are exact in bf16.
constexpr bool is_bf16_dot_weight(DType w) {
  return w == DType::bf16 || w == DType::e4m3 || w == DType::e2m1;
}

/// Rows of x that are multiplied together where there are many; a slice should hold whole groups.
inline constexpr std::int64_t kPairTileRows = 6;

/// As matmul_slice_scratch and matmul_slice, on a CPU that has the instructions and for weights of
/// such a dtype.
std::int64_t matmul_slice_bf16_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth);
void matmul_slice_bf16(const MatmulSlice& slice, float* scratch);

/// Dot products of 32 pairs whose operands stay in registers: `rounds` times 20 of them, to measure
/// a limit with. sink: [16], read and written. Returns the FLOPs done (a multiply-add is two).
double bf16_dot_loop(std::int64_t rounds, float* sink);

}  // namespace lathe
