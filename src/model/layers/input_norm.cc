#include "model/layers/input_norm.h"

#include "base/rows.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace lathe {

void norm_input(const OpsContext& ops, const MutableRowsView& x, const InputNorm& norm, float eps,
                const MutableRowsView& h) {
  if (norm.weight.empty()) return cast_rows(ops, constant(x), h);
  rms_norm(ops, constant(x), norm.weight, eps, h);
  gate_input(ops, norm.gate, h);
}

void gate_input(const OpsContext& ops, const NormGate* gate, const MutableRowsView& h) {
  if (gate == nullptr || gate->down.rows == 0) return;
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView low = alloc_rows(*ops.tensors, h.rows, gate->down.rows);
  const MutableRowsView active = alloc_activations(ops, h.rows, gate->down.rows);
  const MutableRowsView gates = alloc_rows(*ops.tensors, h.rows, h.cols);
  matmul(ops, {constant(h), gate->down, low});
  cast_rows(ops, constant(low), active);
  gate_rows(ops, {.x = active, .gate = constant(low)});
  matmul(ops, {constant(active), gate->up, gates});
  gate_rows(ops, {.x = h, .gate = constant(gates)});
}

}  // namespace lathe
