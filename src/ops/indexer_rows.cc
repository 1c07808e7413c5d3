#include "ops/indexer_rows.h"

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"

namespace lathe {

Result<IndexCodes> prepare_index(const OpsContext& ops, const IndexerRows& op,
                                 const PoolView& pool) {
  LATHE_CHECK(op.table != nullptr, "a table");
  LATHE_CHECK(op.q.rows == 0 || op.q.dtype == DType::f32, "queries of f32");
  LATHE_CHECK(op.k.rows == 0 || op.k.dtype == DType::f32, "keys of f32");
  if (op.k.rows == 0 && op.q.rows == 0) return IndexCodes();
  const auto codes = ops.backend->prepare_index(ops, op, pool);
  if (!codes) return codes.error();
  if (*codes) return **codes;
  if (op.k.rows > 0) {
    layer_norm(ops, constant(op.k), op.norm, op.norm_bias, op.eps, op.k);
    const RopeWrite write{.k = constant(op.k),
                          .positions = op.positions,
                          .slots = op.slots,
                          .table = op.table,
                          .place = op.place};
    if (auto ok = rope_write(ops, write, pool); !ok) return ok.error();
  }
  if (op.q.rows > 0) {
    const std::int64_t dim = op.q.cols / op.heads;
    const std::int64_t first = op.place == RopePlace::last ? dim - op.table->dim() : 0;
    const auto ok = rotate_rows(ops, *op.table, op.positions, op.q, op.heads, first);
    if (!ok) return ok.error();
  }
  return IndexCodes();
}

}  // namespace lathe
