// A thread widens eight neighbouring codes of a row.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.cuh"
#include "kernels/cuda/sm90/matmul/plain/widen.h"

namespace lathe::cuda {

inline constexpr int kWidenThreads = 256;

/// The values of columns 8 word to 8 word + 7 of row `row`, rounded to bf16.
__device__ inline void widen_word(const PlainWeight& w, std::int64_t weight, std::int64_t row,
                                  std::int64_t word, std::uint16_t (&to)[8]) {
  LATHE_UNROLL
  for (int i = 0; i < 8; ++i) {
    to[i] = to_bf16(packed_element(w, weight, row, 8 * word + i)).bits;
  }
}

static __global__ void __launch_bounds__(kWidenThreads)
    widen_kernel(const __grid_constant__ WidenWeights p) {
  wait_for_previous();
  const std::int64_t weight = blockIdx.y;
  if (p.offsets != nullptr && p.offsets[weight] == p.offsets[weight + 1]) return;
  const std::int64_t words = p.w.cols / 8;
  const std::int64_t i = std::int64_t{blockIdx.x} * kWidenThreads + threadIdx.x;
  if (i >= p.rows * words) return;
  const std::int64_t row = i / words, word = i - row * words;
  std::uint16_t v[8];
  widen_word(p.w, weight, p.first_row + row, word, v);
  auto* out = reinterpret_cast<std::uint16_t*>(p.out) + (weight * p.rows + row) * p.w.cols;
  if (p.w.columns == nullptr) {
    uint4 all;
    all.x = v[0] | std::uint32_t{v[1]} << 16;
    all.y = v[2] | std::uint32_t{v[3]} << 16;
    all.z = v[4] | std::uint32_t{v[5]} << 16;
    all.w = v[6] | std::uint32_t{v[7]} << 16;
    *reinterpret_cast<uint4*>(out + 8 * word) = all;
    return;
  }
  for (int k = 0; k < 8; ++k) out[input_column(p.w, weight, 8 * word + k)] = v[k];
}

static __global__ void after_widen_kernel(std::int32_t) {}

}  // namespace lathe::cuda
