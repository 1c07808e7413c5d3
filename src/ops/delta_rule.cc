#include "ops/delta_rule.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {
namespace {

void check_rows(const DeltaRule& op, const RowsView& rows, std::int64_t cols, const char* what) {
  LATHE_CHECK(rows.rows == op.step->rows && rows.cols == cols && rows.dtype == DType::f32, what);
}

}  // namespace

Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) {
  const StepView& step = *op.step;
  const DeltaRuleProblem& p = op.problem;
  if (auto ok = check_delta_rule(p); !ok) return ok;
  check_rows(op, op.x, p.channels(), "x [rows, channels] f32");
  check_rows(op, op.decay, p.gate_cols(), "decay [rows, gate_cols] f32");
  check_rows(op, op.beta, p.heads, "beta [rows, heads] f32");
  check_rows(op, op.gate, p.value_cols(), "gate [rows, heads * dv] f32");
  LATHE_CHECK(op.out.rows == step.rows && op.out.cols == p.value_cols(), "out [rows, heads * dv]");
  LATHE_CHECK(op.out.dtype == ops.backend->activations(), "out of the activations' dtype");
  LATHE_CHECK(std::ssize(op.conv) == p.channels() * p.conv, "conv [channels, taps]");
  LATHE_CHECK(std::ssize(op.a_log) == p.heads, "a_log [heads]");
  LATHE_CHECK(std::ssize(op.dt_bias) == p.gate_cols(), "dt_bias [gate_cols]");
  LATHE_CHECK(std::ssize(op.norm) == p.dv, "norm [dv]");
  LATHE_CHECK(step.rows == 0 || step.state_tokens > 0, "a step with states");
  LATHE_CHECK(op.state.bank_bytes >= delta_state_bytes(p), "room for the state");
  if (step.rows == 0) return {};
  return ops.backend->delta_rule(ops, op);
}

}  // namespace lathe
