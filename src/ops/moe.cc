#include "ops/moe.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {
namespace {

void check(const OpsContext& ops, const ExpertLayer& op) {
  const Router& r = op.choice;
  const ExpertStacks& e = *op.experts;
  LATHE_CHECK((op.x.dtype == DType::f32 || op.x.dtype == ops.backend->activations()) &&
                  op.out.dtype == DType::f32,
              "x of f32 or the backend's activations, out of f32");
  LATHE_CHECK(op.x.rows == op.out.rows && op.x.cols == op.out.cols, "x and out of one shape");
  LATHE_CHECK(r.top_k >= 1 && r.top_k <= r.experts, "top_k of the experts");
  LATHE_CHECK(r.groups >= 1 && r.experts % r.groups == 0, "groups divide experts");
  LATHE_CHECK(r.top_groups >= 1 && r.top_groups <= r.groups, "of the groups");
  LATHE_CHECK(r.group_best == 1 || r.group_best == 2, "groups by their best or two best");
  LATHE_CHECK(r.bias.empty() || std::ssize(r.bias) == r.experts, "bias [experts]");
  LATHE_CHECK(r.token_experts.empty() || std::ssize(op.tokens) == op.x.rows,
              "the token of each row, where experts are given for it");
  const bool readable = ops.backend->memory().kind == MemoryKind::host;
  for (std::size_t t = 0; readable && !r.token_experts.empty() && t < op.tokens.size(); ++t) {
    const std::int64_t token = op.tokens[t];
    LATHE_CHECK(token >= 0 && (token + 1) * r.top_k <= std::ssize(r.token_experts),
                "tokens lie in the table of experts");
  }
  LATHE_CHECK(op.router.rows == r.experts && op.router.cols == op.x.cols, "router [experts, n]");
  const RowsView& routed = op.of_router();
  LATHE_CHECK(routed.rows == op.x.rows && routed.cols == op.x.cols && routed.dtype == op.x.dtype,
              "router_x has the shape and dtype of x");
  LATHE_CHECK(r.expert_scale.empty() || std::ssize(r.expert_scale) == r.experts,
              "expert_scale [experts]");
  LATHE_CHECK(op.router_bias.empty() || std::ssize(op.router_bias) == r.experts, "bias [experts]");
  const bool turns = e.up.count() == 0;  // gate holds both
  const std::int64_t count = e.gate.count();
  LATHE_CHECK(op.first >= 0 && op.first + count <= r.experts, "some of the experts");
  LATHE_CHECK(e.down.count() == count, "a weight per expert");
  LATHE_CHECK(turns || (e.up.count() == count && e.gate.dtype == e.up.dtype &&
                        e.gate.rows == e.up.rows && e.gate.cols == e.up.cols),
              "gate and up of one shape and dtype");
  LATHE_CHECK(e.gate.cols == op.x.cols && e.down.rows == op.x.cols &&
                  e.down.cols * (turns ? 2 : 1) == e.gate.rows,
              "experts of x's width");
  LATHE_CHECK(e.gate_bias.empty() || std::ssize(e.gate_bias) == count * e.gate.rows,
              "gate_bias [experts, gate.rows]");
  LATHE_CHECK(e.down_bias.empty() || std::ssize(e.down_bias) == count * e.down.rows,
              "down_bias [experts, n]");
  LATHE_CHECK(ops.backend->multiplies_in(ops.precision), "a precision that the backend has");
}

}  // namespace

void expert_layer(const OpsContext& ops, const ExpertLayer& op) {
  check(ops, op);
  ops.backend->expert_layer(ops, op);
}

bool expert_layer_with_shared(const OpsContext& ops, const ExpertLayer& op,
                              const SharedExperts& shared) {
  check(ops, op);
  LATHE_CHECK(shared.gate.cols == op.x.cols && shared.up.cols == op.x.cols &&
                  shared.gate.rows == shared.up.rows && shared.down.cols == shared.gate.rows &&
                  shared.down.rows == op.x.cols,
              "shared experts of x's width");
  LATHE_CHECK(
      shared.factor.rows == 0 || (shared.factor.rows == 1 && shared.factor.cols == op.x.cols),
      "factor [1, n]");
  auto* const backend = dynamic_cast<SharedExpertBackend*>(ops.backend);
  return backend != nullptr && backend->expert_layer_with_shared(ops, op, shared);
}

}  // namespace lathe
