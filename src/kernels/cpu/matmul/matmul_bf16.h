// GEMMs with the CPU's dot product of bf16 pairs (AVX512_BF16), for bf16, e4m3, u4 and e2m1
// weights.
//
// Rounding. x is rounded to bf16 (nearest even). For e4m3 weights with scales of blocks, x is first
// multiplied by the scale of the weight's block, in f32, so that the weights are plain codes, which
// are exact in bf16. e2m1 codes are multiplied by their block's scale, which is exact in bf16 too.
// u4 weights are rounded to bf16. Scales of rows or of a matrix multiply the sums.
//
// Order of sums. An output is the sum of its blocks of kDepthBlock elements of K, in ascending
// order. Within a block, each of 16 f32 lanes sums its pairs in ascending order, and a fixed tree
// sums the lanes. Every code path computes exactly this, so a row's bits depend neither on other
// rows nor on other outputs. The instruction rounds to nearest even, reads subnormal numbers as
// zeros and produces none.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul/matmul_slice.h"

namespace lathe {

/// Whether this CPU has the instructions (AVX512_BF16, and AVX512_VBMI to widen e4m3) and the
/// compiler supports them.
bool cpu_has_bf16_dot();

/// Whether weights of this dtype can be multiplied by bf16 pairs.
constexpr bool is_bf16_dot_weight(DType w) {
  return w == DType::bf16 || w == DType::e4m3 || w == DType::u4 || w == DType::e2m1;
}

/// Rows of x that a tile multiplies if there are many; a slice should have whole groups of them.
inline constexpr std::int64_t kPairTileRows = 6;

/// matmul_slice_scratch() and matmul_slice() by bf16 pairs. Precondition: cpu_has_bf16_dot() and
/// is_bf16_dot_weight().
std::int64_t matmul_slice_bf16_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth);
void matmul_slice_bf16(const MatmulSlice& slice, float* scratch);

/// For measuring peak FLOPS: `rounds` x 20 dot instructions with operands in registers. sink: [16],
/// read and written. Returns the FLOPs done (a multiply-add is two).
double bf16_dot_loop(std::int64_t rounds, float* sink);

}  // namespace lathe
