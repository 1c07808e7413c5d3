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
  const bool mixes = op.iterations > 0;
  const std::int64_t comb = mixes ? s * s : 0;
  LATHE_CHECK(s >= 1 && s <= kMaxStreams && op.iterations >= 0, "streams and iterations");
  LATHE_CHECK(f32_rows(op.x, rows, s * n), "x [T, streams * n]");
  LATHE_CHECK(f32_rows(op.product, rows, 2 * s + comb), "product [T, 2 S + S * S]");
  LATHE_CHECK(std::ssize(op.base) == op.product.cols && op.scale.size() == (mixes ? 3 : 2),
              "base and scale");
  LATHE_CHECK(f32_rows(constant(op.out), rows, n), "out [T, n]");
  LATHE_CHECK(f32_rows(constant(op.mix), rows, s + comb), "mix [T, S + S * S]");
  ops.backend->hyper_mix(ops, op);
}

void hyper_add(const OpsContext& ops, const HyperAdd& op) {
  const std::int64_t s = op.streams, rows = op.x.rows, n = op.y.cols;
  LATHE_CHECK(s >= 1 && s <= kMaxStreams, "streams");
  LATHE_CHECK(f32_rows(constant(op.x), rows, s * n), "x [T, streams * n]");
  LATHE_CHECK(f32_rows(op.y, rows, n), "y [T, n]");
  LATHE_CHECK(f32_rows(op.mix, rows, op.mix.cols == s ? s : s + s * s),
              "mix [T, S + S * S] or [T, S]");
  ops.backend->hyper_add(ops, op);
}

void hyper_head(const OpsContext& ops, const HyperHead& op) {
  const std::int64_t s = op.streams, rows = op.x.rows, n = op.out.cols;
  LATHE_CHECK(s >= 1 && s <= kMaxStreams, "streams");
  LATHE_CHECK(f32_rows(op.x, rows, s * n), "x [T, streams * n]");
  LATHE_CHECK(op.product.cols == 0 || (f32_rows(op.product, rows, s) && std::ssize(op.base) == s &&
                                       op.scale.size() == 1),
              "product [T, S], base and scale, or none");
  LATHE_CHECK(f32_rows(constant(op.out), rows, n), "out [T, n]");
  ops.backend->hyper_head(ops, op);
}

}  // namespace lathe
