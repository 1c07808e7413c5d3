// Factors in device memory, for e4m3 queries.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Multiplies a thread's scores. p.scale then stays a constant operand of the softmax: a register
/// for the product of all scales would be one too many.
template <int kScores>
__device__ __forceinline__ void apply_device_scales(float (&d)[kScores], const LatentParams& p) {
  if (p.q_scale == nullptr && p.key_scale == nullptr) return;
  float factor = p.q_scale != nullptr ? *p.q_scale : 1.f;
  if (p.key_scale != nullptr) factor *= *p.key_scale;
  LATHE_UNROLL
  for (float& x : d) x *= factor;
}

__device__ inline float value_scale(const LatentParams& p) {
  return p.key_scale != nullptr ? p.value_scale * *p.key_scale : p.value_scale;
}

}  // namespace lathe::cuda
