// A thread writes 8 neighbouring columns of a row.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/pack/permute_columns.h"

namespace lathe::cuda {

inline constexpr int kPermuteThreads = 256;

static __global__ void __launch_bounds__(kPermuteThreads)
    permute_columns_kernel(const __grid_constant__ PermuteColumns p) {
  let_next_begin();
  const std::int64_t i = std::int64_t{blockIdx.x} * kPermuteThreads + threadIdx.x;
  const std::int64_t words = p.cols / 8;
  const std::int64_t row = i / words, col = i % words * 8;
  std::int32_t from[8] = {};
  if (row < p.rows) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) from[j] = p.columns[col + j];
  }
  wait_for_previous();
  if (row >= p.rows) return;
  const std::uint16_t* x = p.x + row * p.x_stride;
  std::uint32_t pairs[4];
  LATHE_UNROLL
  for (int j = 0; j < 4; ++j) {
    pairs[j] = std::uint32_t{x[from[2 * j]]} | std::uint32_t{x[from[2 * j + 1]]} << 16;
  }
  *reinterpret_cast<uint4*>(p.out + row * p.out_stride + col) = {pairs[0], pairs[1], pairs[2],
                                                                 pairs[3]};
}

}  // namespace lathe::cuda
