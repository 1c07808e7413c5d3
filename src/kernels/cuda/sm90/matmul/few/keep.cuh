// Values that the compiler must compute where they are written.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

/// Computes v here and keeps it in a register. Otherwise the compiler may compute it again at every
/// use, or only in the branch that uses it.
__device__ inline void keep(std::uint32_t& v) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(v));
#else
  static_cast<void>(v);
#endif
}

}  // namespace lathe::cuda
