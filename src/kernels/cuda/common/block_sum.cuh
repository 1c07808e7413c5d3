// Sum over a block's threads.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Adds lanes and then warps as a tree: the order, and so the bits, depend only on kThreads. Every
/// thread gets the sum. `room`: shared, one float per warp; free again on return.
template <int kThreads>
__device__ inline float block_sum(float v, float* room) {
  for (int d = 16; d > 0; d /= 2) v += shuffle_xor(v, d);
  const auto warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) room[warp] = v;
  sync_block();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += room[w];
  sync_block();
  return sum;
}

}  // namespace lathe::cuda
