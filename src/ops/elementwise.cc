#include "ops/elementwise.h"

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"

namespace lathe {
namespace {

void check_activations(const OpsContext& ops, const RowsView& a) {
  LATHE_CHECK(a.dtype == DType::f32 || a.dtype == ops.backend->activations(),
              "rows are f32 or the backend's activations");
}

void check_alike(const OpsContext& ops, const RowsView& a, const MutableRowsView& b) {
  check_activations(ops, a);
  check_activations(ops, constant(b));
  LATHE_CHECK(a.rows == b.rows && a.cols == b.cols, "rows of one shape");
}

}  // namespace

MutableRowsView alloc_activations(const OpsContext& ops, std::int64_t rows, std::int64_t cols) {
  return alloc_rows(*ops.tensors, rows, cols, ops.backend->activations());
}

MutableRowsView activations_of(const OpsContext& ops, const MutableRowsView& x) {
  return x.dtype == ops.backend->activations() ? x : alloc_activations(ops, x.rows, x.cols);
}

void rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight, float eps,
              const MutableRowsView& out, std::int64_t heads) {
  check_alike(ops, x, out);
  LATHE_CHECK(heads >= 1 && x.cols % heads == 0, "heads of one width");
  LATHE_CHECK(weight.empty() || std::ssize(weight) * heads == x.cols, "weight covers a head");
  ops.backend->rms_norm(ops, {x, weight, eps, out, heads, false});
}

void add_rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                  float eps, const MutableRowsView& out) {
  check_alike(ops, x, out);
  LATHE_CHECK(std::ssize(weight) == x.cols, "weight [n]");
  ops.backend->rms_norm(ops, {x, weight, eps, out, 1, true});
}

void layer_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                std::span<const float> bias, float eps, const MutableRowsView& out) {
  check_alike(ops, x, out);
  LATHE_CHECK(std::ssize(weight) == x.cols && std::ssize(bias) == x.cols, "weight and bias [n]");
  ops.backend->layer_norm(ops, {x, weight, bias, eps, out});
}

void gated_activation(const OpsContext& ops, const GatedActivation& op) {
  if (op.up.cols == 0) {
    check_activations(ops, op.gate);
    check_activations(ops, constant(op.out));
    LATHE_CHECK(op.gate.rows == op.out.rows && op.gate.cols == 2 * op.out.cols,
                "gate holds both projections");
  } else {
    check_alike(ops, op.gate, op.out);
    check_alike(ops, op.up, op.out);
  }
  ops.backend->gated_activation(ops, op);
}

void gate_rows(const OpsContext& ops, const GateRows& op) {
  check_activations(ops, constant(op.x));
  LATHE_CHECK(op.heads >= 1 && op.x.cols % op.heads == 0, "heads of one width");
  LATHE_CHECK(op.gate.dtype == DType::f32 && op.gate.rows == op.x.rows, "gate [T, ..] f32");
  LATHE_CHECK(op.gate.cols == 1 || op.gate.cols * op.heads == op.x.cols,
              "a gate for each element or head");
  ops.backend->gate_rows(ops, op);
}

void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) {
  check_alike(ops, x, out);
  ops.backend->add_rows(ops, x, out);
}

void scale_rows(const OpsContext& ops, const MutableRowsView& rows, std::span<const float> factor) {
  LATHE_CHECK(rows.dtype == DType::f32 && factor.size() == 1, "rows of f32 and one factor");
  ops.backend->scale_rows(ops, {.rows = rows, .factor = factor});
}

void scale_rows(const OpsContext& ops, const MutableRowsView& rows, float times) {
  LATHE_CHECK(rows.dtype == DType::f32, "rows of f32");
  ops.backend->scale_rows(ops, {.rows = rows, .times = times});
}

void cap_rows(const OpsContext& ops, const MutableRowsView& rows, float limit) {
  LATHE_CHECK(rows.dtype == DType::f32 && limit > 0, "rows of f32 and a limit above 0");
  ops.backend->scale_rows(ops, {.rows = rows, .limit = limit});
}

void embed(const OpsContext& ops, const Embed& op) {
  LATHE_CHECK(op.out.dtype == DType::f32 && op.out.rows == std::ssize(op.tokens) &&
                  op.out.cols == op.table.cols,
              "out is f32 [tokens, n]");
  LATHE_CHECK(op.first >= 0 && op.first + op.table.rows <= op.vocab, "a part of the vocabulary");
  LATHE_CHECK(op.table.scales == nullptr && op.table.mx_scales == nullptr, "tables have no scales");
  ops.backend->embed(ops, op);
}

void embed(const OpsContext& ops, const WeightView& table, std::span<const std::int32_t> tokens,
           const MutableRowsView& out, float scale) {
  embed(ops, {table, tokens, out, scale, 0, table.rows});
}

void gather_rows(const OpsContext& ops, const RowsView& x, std::span<const std::int32_t> rows,
                 const MutableRowsView& out) {
  LATHE_CHECK(out.rows == std::ssize(rows) && out.cols == x.cols && out.dtype == x.dtype,
              "out is [rows, n] as x is");
  ops.backend->gather_rows(ops, x, rows, out);
}

void find_non_finite(const OpsContext& ops, const FindNonFinite& op) {
  LATHE_CHECK(op.x.dtype == DType::f32, "rows are f32");
  LATHE_CHECK(
      op.rows.empty() ? op.x.rows <= std::ssize(op.first) : std::ssize(op.rows) == op.x.rows,
      "a row of the batch for each row of x");
  ops.backend->find_non_finite(ops, op);
}

}  // namespace lathe
