// The matrix instruction of one warp, for few columns: 16 x 8 outputs, 16 of K.
//
// On Hopper it adds 16 products and the accumulator as wgmma does: aligned to the largest exponent,
// with 25 fraction bits, truncated once. So both give the same bits for the same order of K.
//
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
#pragma once

#include "kernels/cuda/common/hopper.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

/// d += a b^T over 16 of K, a [16, 16] and b [8, 16] in bf16. Lane (g = lane / 4, c = lane % 4) has
/// of a: columns 2 c, + 1 of rows g and g + 8, then columns 8 + 2 c, + 1 of both;
/// of b: columns 2 c, + 1 and 8 + 2 c, + 1 of row g;
/// of d: rows g (first two) and g + 8, columns 2 c, + 1.
__device__ inline void mma_m16n8_bf16(float* d, const std::uint32_t (&a)[4], std::uint32_t b0,
                                      std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace lathe::cuda

#else

#include "kernels/cuda/common/emulator_wgmma.h"

namespace lathe::cuda {

inline void mma_m16n8_bf16(float* d, const std::uint32_t (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) {
  const auto rows = emulated::operand_rows(a, emulated::bf16_half);
  float columns[2][16];
  const std::uint32_t words[2] = {b0, b1};
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t* lanes = emulated::exchange(words[i]);
    for (int column = 0; column < 2; ++column) {
      for (int c = 0; c < 4; ++c) {
        const auto word = static_cast<std::uint32_t>(lanes[4 * (2 * (lane() % 4) + column) + c]);
        for (int half = 0; half < 2; ++half) {
          columns[column][8 * i + 2 * c + half] = emulated::bf16_half(word, half);
        }
      }
    }
  }
  float sum[4] = {d[0], d[1], d[2], d[3]};
  emulated::multiply(
      sum, [&](int row, int k) { return emulated::element(rows, row, k); },
      [&](int column, int k) { return columns[column % 2][k]; }, true);
  for (int i = 0; i < 4; ++i) d[i] = sum[i];
}

}  // namespace lathe::cuda

#endif
