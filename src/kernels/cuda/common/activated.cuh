// Gated activations of one element.
#pragma once

#include "kernels/cuda/common/activation_terms.h"
#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

#ifdef __CUDACC__
/// a / b to 2 ulp; 0 where b is above 2^126.
__device__ inline float divide_fast(float a, float b) { return __fdividef(a, b); }
#else
inline float divide_fast(float a, float b) { return a / b; }
#endif

/// v: element of the gate projection; u: of the up projection. NaN stays NaN.
__device__ inline float activated(const ActivationTerms& t, float v, float u) {
  v = v > t.limit ? t.limit : v;
  u = u > t.limit ? t.limit : u < -t.limit ? -t.limit : u;
  const float power = v * fmaf(t.cubic * v, v, t.linear);
  return divide_fast(v, 1 + exp2_fast(power)) * (u + t.shift);
}

}  // namespace lathe::cuda
