// Fetches a tensor map ahead of its first copy, which would wait for it.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

#ifdef __CUDACC__
/// map: a kernel's parameter in constant memory (__grid_constant__).
__device__ inline void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
#else
inline void prefetch_map(const void*) {}
#endif

}  // namespace lathe::cuda
