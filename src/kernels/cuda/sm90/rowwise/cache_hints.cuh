// Accesses with hints to the caches.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Loads data that L1 does not keep.
__device__ __forceinline__ float4 load_past_l1(const float4* from) {
#ifdef __CUDACC__
  float4 v;
  asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from));
  return v;
#else
  return *from;
#endif
}
/// Stores data that caches drop first.
__device__ __forceinline__ void store_once(uint4* to, uint4 v) {
#ifdef __CUDACC__
  __stcs(to, v);
#else
  *to = v;
#endif
}

}  // namespace lathe::cuda
