#include "ops/hyper.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {
namespace {

bool f32_rows(const RowsView& x, std::int64_t rows, std::int64_t cols) {
  return x.dtype == DType::f32 && x.rows == rows && x.cols == cols;
}

}  // namespace

void hyper_mix(const OpsContext& ops, const HyperMix& op) {
  const std::int64_t s = op.streams, rows = op.x.rows, n = op.out.cols;
  LATHE_CHECK(s >= 1 && s <= kMaxStreams && op.iterations >= 1, "streams and iterations");
  LATHE_CHECK(f32_rows(op.x, rows, s * n), "x [T, streams * n]");
  LATHE_CHECK(f32_rows(op.product, rows, 2 * s + s * s), "product [T, 2 S + S * S]");
  LATHE_CHECK(std::ssize(op.base) == op.product.cols && op.scale.size() == 3, "base and scale");
  LATHE_CHECK(f32_rows(constant(op.out), rows, n), "out [T, n]");
  LATHE_CHECK(f32_rows(constant(op.mix), rows, s + s * s), "mix [T, S + S * S]");
  ops.backend->hyper_mix(ops, op);
}

void hyper_add(const OpsContext& ops, const HyperAdd& op) {
  const std::int64_t s = op.streams, rows = op.x.rows, n = op.y.cols;
  LATHE_CHECK(s >= 1 && s <= kMaxStreams, "streams");
  LATHE_CHECK(f32_rows(constant(op.x), rows, s * n), "x [T, streams * n]");
  LATHE_CHECK(f32_rows(op.y, rows, n), "y [T, n]");
  LATHE_CHECK(f32_rows(op.mix, rows, s + s * s), "mix [T, S + S * S]");
  ops.backend->hyper_add(ops, op);
}

void hyper_head(const OpsContext& ops, const HyperHead& op) {
  const std::int64_t s = op.streams, rows = op.x.rows, n = op.out.cols;
  LATHE_CHECK(s >= 1 && s <= kMaxStreams, "streams");
  LATHE_CHECK(f32_rows(op.x, rows, s * n), "x [T, streams * n]");
  LATHE_CHECK(f32_rows(op.product, rows, s), "product [T, S]");
  LATHE_CHECK(std::ssize(op.base) == s && op.scale.size() == 1, "base and scale");
  LATHE_CHECK(f32_rows(constant(op.out), rows, n), "out [T, n]");
  ops.backend->hyper_head(ops, op);
}

}  // namespace lathe
