// Accesses with hints to the caches.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Stores data that caches drop first.
__device__ __forceinline__ void store_once(uint4* to, uint4 v) {
#ifdef __CUDACC__
  __stcs(to, v);
#else
  *to = v;
#endif
}

}  // namespace lathe::cuda
