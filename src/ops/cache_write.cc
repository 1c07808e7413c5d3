#include "ops/cache_write.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {

Result<void> rope_write(const OpsContext& ops, const RopeWrite& op, const PoolView& pool) {
  return ops.backend->rope_write(ops, op, pool);
}

Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                         std::span<const LocalPos> positions, const MutableRowsView& rows,
                         std::int64_t heads, std::int64_t first) {
  return ops.backend->rotate_rows(ops, table, positions, rows, heads, first);
}

Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) {
  return ops.backend->unrotate_rows(ops, table, positions, rows, heads, first);
}

Result<void> write_rows(const OpsContext& ops, const RowsView& rows, std::span<const Slot> slots,
                        const PoolView& pool, const TensorScales& scales, ValueTally* tally) {
  return ops.backend->write_rows(ops, rows, slots, pool, scales, tally);
}

void cast_rows(const OpsContext& ops, const CastRows& op) {
  const RowsView& x = op.x;
  const MutableRowsView& out = op.out;
  LATHE_CHECK(x.dtype == DType::f32 && x.rows == out.rows && x.cols == out.cols, "rows of f32");
  LATHE_CHECK(out.dtype == DType::f32 || out.dtype == DType::bf16 || out.dtype == DType::e4m3,
              "f32, bf16 or e4m3");
  ops.backend->cast_rows(ops, op);
}

}  // namespace lathe
