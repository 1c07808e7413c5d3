#include "ops/qkv.h"

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"

namespace lathe {

Result<void> prepare_qkv(const OpsContext& ops, const QkvRows& op, const PoolView& pool) {
  LATHE_CHECK(op.q.dtype == DType::f32 && op.kv.dtype == DType::f32, "rows of f32");
  LATHE_CHECK(op.q.rows == op.q_out.rows && op.q.cols == op.q_out.cols, "q_out has the shape of q");
  if (op.q_table == nullptr) {  // the fused kernels have one table
    const auto done = ops.backend->prepare_qkv(ops, op, pool);
    if (!done) return done.error();
    if (*done) return {};
  }
  if (op.norms) rms_norm(ops, constant(op.q), op.q_norm, op.eps, op.q, op.heads);
  if (op.kv.cols > 0) {
    const MutableRowsView k = cols_at(op.kv, 0, op.q.cols / op.heads * op.kv_heads);
    if (op.norms) rms_norm(ops, constant(k), op.k_norm, op.eps, k, op.kv_heads);
    if (auto ok = rotate_rows(ops, *op.table, op.positions, k, op.kv_heads, 0); !ok) return ok;
    const auto ok = write_rows(ops, constant(op.kv), op.slots, pool, op.scales, op.tally);
    if (!ok) return ok;
  }
  const RopeTable& q_table = op.q_table != nullptr ? *op.q_table : *op.table;
  if (auto ok = rotate_rows(ops, q_table, op.positions, op.q, op.heads, 0); !ok) return ok;
  if (op.q_out.data != op.q.data) cast_rows(ops, constant(op.q), op.q_out);
  return {};
}

}  // namespace lathe
