#include "ops/matmul.h"

#include <array>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "ops/elementwise.h"

namespace lathe {
namespace {

// u4 and NVFP4, and MXFP4 as a GPU stores it.
void check_groups(const WeightView& w) {
  const GroupScales& g = w.groups;
  const bool u4 = w.dtype == DType::u4, mx = g.dtype == DType::ue8m0;
  LATHE_CHECK(u4 || w.dtype == DType::e2m1, "only u4 and e2m1 weights have scales of groups");
  LATHE_CHECK(
      u4 ? g.size == 32 || g.size == 64 || g.size == 128 : g.size == (mx ? kMxBlock : kNvBlock),
      "groups of 32, 64 or 128 u4, of 16 e2m1 (NVFP4) or of 32 (MXFP4)");
  LATHE_CHECK(u4 ? g.dtype == DType::bf16 || g.dtype == DType::f16 : mx || g.dtype == DType::e4m3,
              "scales of u4 are bf16 or f16, of NVFP4 e4m3, and of MXFP4 ue8m0");
  LATHE_CHECK(w.cols % (u4 ? g.size : kMxBlock) == 0, "rows are whole groups");
  LATHE_CHECK(u4 || g.zeros == nullptr, "e2m1 has no zeros");
  LATHE_CHECK(u4 || (w.scales == nullptr) == mx, "NVFP4 has a factor, and MXFP4 has none");
}

void check_weight(const WeightView& w) {
  const DType t = w.dtype;
  LATHE_CHECK(t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::e4m3 ||
                  t == DType::u4 || t == DType::e2m1,
              "weights are f32, bf16, f16, e4m3, u4 or e2m1");
  const bool groups = w.groups.data != nullptr;
  if (groups) check_groups(w);
  LATHE_CHECK((t == DType::e2m1 && !groups) == (w.mx_scales != nullptr), "MXFP4 has its scales");
  LATHE_CHECK(t != DType::u4 || groups, "u4 weights have scales of groups");
  LATHE_CHECK(t != DType::e2m1 || w.cols % kMxBlock == 0, "e2m1 weights are whole blocks");
  LATHE_CHECK(w.scales == nullptr || t == DType::e4m3 || (t == DType::e2m1 && groups),
              "only e4m3 weights and NVFP4 have scales");
}

void check(const OpsContext& ops, const Product& p) {
  const auto activations = [&](DType t) {
    return t == DType::f32 || t == ops.backend->activations();
  };
  check_weight(p.w);
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
