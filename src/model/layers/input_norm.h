// The norm of a part's input, with the gate that some models have after it.
#pragma once

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/weights/weights.h"

namespace lathe {

struct InputNorm {
  Vector weight;  // empty: the part reads the residual state as it is
  const NormGate* gate = nullptr;
};

/// h = the norm of x, or x itself without a weight. x: [rows, hidden] f32; h: [rows, hidden]
/// activations.
void norm_input(const OpsContext& ops, const MutableRowsView& x, const InputNorm& norm, float eps,
                const MutableRowsView& h);

/// h *= sigmoid(up silu(down h)), if there is a gate. h: [rows, hidden] activations, normed.
void gate_input(const OpsContext& ops, const NormGate* gate, const MutableRowsView& h);

}  // namespace lathe
