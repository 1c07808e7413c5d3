#include "ops/matmul.h"

#include <array>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "ops/elementwise.h"

namespace lathe {
namespace {

void check(const OpsContext& ops, const Product& p) {
  const auto activations = [&](DType t) {
    return t == DType::f32 || t == ops.backend->activations();
  };
  const DType w = p.w.dtype;
  LATHE_CHECK(w == DType::f32 || w == DType::bf16 || w == DType::f16 || w == DType::e4m3 ||
                  w == DType::e2m1,
              "weights are f32, bf16, f16, e4m3 or e2m1");
  LATHE_CHECK((w == DType::e2m1) == (p.w.mx_scales != nullptr), "e2m1 weights have MXFP4's scales");
  LATHE_CHECK(w != DType::e2m1 || p.w.cols % kMxBlock == 0, "MXFP4 weights are whole blocks");
  LATHE_CHECK(p.w.scales == nullptr || w == DType::e4m3, "only e4m3 weights have scales");
  LATHE_CHECK(activations(p.x.dtype) && activations(p.out.dtype),
              "rows are f32 or the backend's activations");
  LATHE_CHECK(p.x.cols == p.w.cols, "x has the weight's columns");
  LATHE_CHECK(p.out.cols == p.w.rows, "out has the weight's rows as columns");
  LATHE_CHECK(p.out.rows == p.x.rows, "out has the rows of x");
}

}  // namespace

void matmul(const OpsContext& ops, std::span<const Product> products) {
  for (const Product& p : products) check(ops, p);
  LATHE_CHECK(ops.backend->multiplies_in(ops.precision), "a precision that the backend has");
  ops.backend->matmul(ops, products);
}

void gated_matmul(const OpsContext& ops, const GatedProduct& op) {
  check(ops, {op.x, op.gate, op.out});
  check(ops, {op.x, op.up, op.out});
  LATHE_CHECK(ops.backend->multiplies_in(ops.precision), "a precision that the backend has");
  if (ops.backend->gated_matmul(ops, op)) return;
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView gate =
      op.out.dtype == DType::f32 ? op.out : alloc_rows(*ops.tensors, op.x.rows, op.gate.rows);
  const MutableRowsView up = alloc_rows(*ops.tensors, op.x.rows, op.up.rows);
  matmul(ops, std::array{Product{op.x, op.gate, gate}, Product{op.x, op.up, up}});
  gated_activation(ops, {op.activation, constant(gate), constant(up), op.out});
}

void head_matmul(const OpsContext& ops, const HeadProducts& op) {
  for (std::int64_t h = 0; h < op.w->count(); ++h) check(ops, product_of(op, h));
  LATHE_CHECK(ops.backend->multiplies_in(ops.precision), "a precision that the backend has");
  ops.backend->head_matmul(ops, op);
}

}  // namespace lathe
