#include "ops/compress.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {

Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool) {
  const StepView& step = *op.step;
  const std::int64_t width = std::int64_t{op.halves} * op.dim;
  LATHE_CHECK(op.ratio >= 1 && (op.halves == 1 || op.halves == 2), "one half or two");
  LATHE_CHECK(op.kv.rows == step.rows && op.kv.cols == width && op.kv.dtype == DType::f32,
              "kv [rows, halves * dim]");
  LATHE_CHECK(op.gate.rows == step.rows && op.gate.cols == width && op.gate.dtype == DType::f32,
              "gate [rows, halves * dim]");
  LATHE_CHECK(std::ssize(op.position_bias) == op.ratio * width, "position_bias");
  LATHE_CHECK(
      (op.norm.empty() || std::ssize(op.norm) == op.dim) && pool.layout.row_elems() == op.dim,
      "a key's width");
  LATHE_CHECK(op.table->dim() <= op.dim, "a rotary part inside the entry");
  LATHE_CHECK(step.rows == 0 || step.state_tokens > 0, "a step with states");
  LATHE_CHECK(op.state.bank_bytes >= 4 * fold_floats(op.halves, op.dim), "room for the fold");
  return ops.backend->compress(ops, op, pool);
}

}  // namespace lathe
