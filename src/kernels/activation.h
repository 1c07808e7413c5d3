// The gated activations of feed-forward layers.
#pragma once

#include "base/enum.h"
#include "base/rows_view.h"

namespace lathe {

// v: an element of the gate projection; u: the same element of the up projection.
#define LATHE_ACTIVATIONS(X)                                                                 \
  X(silu)           /* v / (1 + e^-v) * u */                                                 \
  X(gelu_tanh)      /* v / 2 (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) * u (Gemma) */      \
  X(clamped_swiglu) /* c / (1 + e^(-alpha c)) * (d + 1), c = min(v, limit) and d = u clamped \
                       to [-limit, limit] (gpt-oss) */                                       \
  X(clamped_silu)   /* c / (1 + e^-c) * d of the same c and d (DeepSeek V4) */
LATHE_ENUM(ActivationKind, LATHE_ACTIVATIONS)

struct Activation {
  ActivationKind kind = ActivationKind::silu;
  float alpha = 1.702f;  // clamped_swiglu
  float limit = 7;       // clamped_swiglu, clamped_silu
};

struct GatedActivation {
  Activation activation;
  // [T, n] activations each. Or `up` has no columns, and gate [T, 2 n] holds both interleaved, gate
  // first.
  RowsView gate;
  RowsView up;
  MutableRowsView out;  // [T, n] activations; may be gate or up, or the first n columns of gate
};

}  // namespace lathe
