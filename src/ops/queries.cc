#include "ops/queries.h"

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"

namespace lathe {

Result<void> prepare_queries(const OpsContext& ops, const QueryRows& op) {
  LATHE_CHECK(op.x.dtype == DType::f32 && op.x.rows == op.out.rows && op.x.cols == op.out.cols,
              "rows of f32, as many as those of out");
  const auto done = ops.backend->prepare_queries(ops, op);
  if (!done) return done.error();
  if (*done) return {};
  if (op.norms) rms_norm(ops, constant(op.x), op.norm, op.eps, op.x, op.heads);
  if (auto ok = rotate_rows(ops, *op.table, op.positions, op.x, op.heads, 0); !ok) return ok;
  if (op.out.data != op.x.data) cast_rows(ops, constant(op.x), op.out);
  return {};
}

}  // namespace lathe
