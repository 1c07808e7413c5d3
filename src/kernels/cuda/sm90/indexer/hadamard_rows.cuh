// Hadamard rotation of every head of each row: one warp per head, in shared memory.
#pragma once

#include "kernels/cuda/common/hadamard.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

inline constexpr int kHadamardWarps = 4, kHadamardThreads = 32 * kHadamardWarps;

static __global__ void __launch_bounds__(kHadamardThreads)
    hadamard_rows_kernel(const __grid_constant__ HadamardRows p) {
  __shared__ float room[kHadamardWarps][kHadamardMostDim];
  let_next_begin();
  wait_for_previous();
  const std::int64_t head = std::int64_t{blockIdx.x} * kHadamardWarps + threadIdx.x / 32;
  if (head >= p.rows * p.heads) return;
  float* const x = room[threadIdx.x / 32];
  const float* const from = p.x + head / p.heads * p.x_stride + head % p.heads * p.dim;
  float* const to = p.out + head * p.dim;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  for (std::int32_t i = lane; i < p.dim; i += 32) x[i] = from[i];
  warp_hadamard(x, p.dim);
  for (std::int32_t i = lane; i < p.dim; i += 32) to[i] = x[i];
}

}  // namespace lathe::cuda
