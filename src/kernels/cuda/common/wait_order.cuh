// Keeps arithmetic before a wait that it should overlap.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

/// Makes the compiler compute `sum`, which is never negative, before a wait that follows. Otherwise
/// ptxas puts a wait for products first, and nothing overlaps them.
__device__ inline void finish_before_wait([[maybe_unused]] float sum) {
#ifdef __CUDACC__
  if (__builtin_expect(sum < 0, 0)) asm volatile("nanosleep.u32 0;" ::: "memory");
#endif
}

}  // namespace lathe::cuda
