// The gated activations, for one element.
#pragma once

#include <cmath>

#include "kernels/activation.h"
#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Of v, an element of the gate projection, and u, that of the up projection.
__device__ inline float activated(const Activation& how, float v, float u) {
  switch (how.kind) {
    case ActivationKind::silu:
      return v / (1 + expf(-v)) * u;
    case ActivationKind::gelu_tanh:
      // (1 + tanh(x)) / 2 is 1 / (1 + e^-2x), which does not cancel; sqrt(8 / pi).
      return v / (1 + expf(-1.5957691216057308f * (v + 0.044715f * v * v * v))) * u;
    case ActivationKind::clamped_swiglu:
      // Written so that NaN stays.
      v = v > how.limit ? how.limit : v;
      u = u > how.limit ? how.limit : u < -how.limit ? -how.limit : u;
      return v / (1 + expf(-how.alpha * v)) * (u + 1);
    case ActivationKind::clamped_silu:
      v = v > how.limit ? how.limit : v;
      u = u > how.limit ? how.limit : u < -how.limit ? -how.limit : u;
      return v / (1 + expf(-v)) * u;
  }
  return 0;
}

}  // namespace lathe::cuda
