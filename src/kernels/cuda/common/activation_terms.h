// Constants of a gated activation, computed on the host and passed to kernels.
#pragma once

#include <limits>

#include "kernels/activation.h"

namespace lathe::cuda {

/// Covers every activation with one branch-free formula, so that a thread's elements are
/// independent: v / (1 + 2^(v (linear + cubic v^2))) * (u + shift), with v at most `limit` and u
/// within +-limit.
struct ActivationTerms {
  float linear, cubic, limit, shift;
};

inline ActivationTerms activation_terms(const Activation& how) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr float kNone = std::numeric_limits<float>::infinity();
  // GELU's (1 + tanh(x)) / 2 equals 1 / (1 + e^-2x), which does not cancel. The constant is sqrt(8
  // / pi).
  constexpr float kGelu = 1.5957691216057308f * kLog2E;
  switch (how.kind) {
    case ActivationKind::silu:
      break;
    case ActivationKind::gelu_tanh:
      return {-kGelu, -kGelu * 0.044715f, kNone, 0};
    case ActivationKind::clamped_swiglu:
      return {-kLog2E * how.alpha, 0, how.limit, 1};
    case ActivationKind::clamped_silu:
      return {-kLog2E, 0, how.limit, 0};
  }
  return {-kLog2E, 0, kNone, 0};
}

}  // namespace lathe::cuda
