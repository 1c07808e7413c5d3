#include "ops/exchange.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {
namespace {

template <class A, class B>
bool alike(const A& a, const B& b) {
  return a.rows == b.rows && a.cols == b.cols;
}

void check_partial(const OpsContext& ops, const RowsView& partial, const MutableRowsView& out) {
  LATHE_CHECK(ops.communicator != nullptr, "several ranks");
  LATHE_CHECK(partial.dtype == DType::f32 || partial.dtype == ops.backend->activations(),
              "partials are f32 or the backend's activations");
  LATHE_CHECK(out.dtype == DType::f32 && alike(partial, out), "f32 sums of the partials' shape");
}

}  // namespace

MutableRowsView alloc_partial(const OpsContext& ops, std::int64_t rows, std::int64_t cols) {
  return alloc_partial(ops, rows, cols, ops.backend->activations());
}

MutableRowsView alloc_partial(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                              DType dtype) {
  LATHE_CHECK(ops.communicator != nullptr, "several ranks");
  return ops.communicator->partials(ops, rows, cols, dtype);
}

void sum_rows(const OpsContext& ops, const SumRows& op) {
  check_partial(ops, op.partial, op.out);
  ops.communicator->sum(ops, op);
}

void sum_norm(const OpsContext& ops, const SumNorm& op) {
  check_partial(ops, op.partial, op.x);
  LATHE_CHECK(alike(op.x, op.h), "rows of one shape");
  LATHE_CHECK(op.h.dtype == DType::f32 || op.h.dtype == ops.backend->activations(),
              "rows are f32 or the backend's activations");
  LATHE_CHECK(op.weight.empty() || std::ssize(op.weight) == op.x.cols, "weight [n]");
  ops.communicator->sum_norm(ops, op);
}

void trade_columns(const OpsContext& ops, const TradeColumns& op) {
  LATHE_CHECK(ops.communicator != nullptr, "several ranks");
  const Communicator& c = *ops.communicator;
  LATHE_CHECK(std::ssize(op.first) == c.size() + std::int64_t{1}, "columns of every rank");
  const auto r = static_cast<std::size_t>(c.rank());
  LATHE_CHECK(op.columns.cols == op.first[r + 1] - op.first[r], "this rank's columns");
  LATHE_CHECK(op.rows.cols == op.first.back() && op.rows.rows == c.owned_rows(op.columns.rows),
              "whole rows of this rank");
  LATHE_CHECK(op.columns.dtype == DType::f32 && op.rows.dtype == DType::f32, "f32 columns");
  ops.communicator->trade_columns(ops, op);
}

}  // namespace lathe
