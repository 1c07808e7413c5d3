// Writes rows into the cache: rotation (RoPE), quantisation, store. layout/rope/rope_write.h and
// layout/codec/codec.h define what is computed, byte for byte; the functions named below are
// theirs.
//
// Errors: the layout functions' errors, for arguments that contradict each other. Some rows may
// have been written by then.
#pragma once

#include <span>

#include "base/result.h"
#include "base/rows_view.h"
#include "kernels/context.h"
#include "kernels/operators.h"
#include "layout/pages/pool_view.h"
#include "layout/rope/rope.h"
#include "layout/rope/rope_write.h"

namespace lathe {

/// rope_quantize_write().
Result<void> rope_write(const OpsContext& ops, const RopeWrite& op, const PoolView& pool);

/// apply_rope(), forward, in place. rows: [T, heads * width] f32 or bf16.
Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                         std::span<const LocalPos> positions, const MutableRowsView& rows,
                         std::int64_t heads, std::int64_t first);

/// apply_rope(), inverse, in place. DeepSeek V4 caches rotated values, so attention outputs are
/// rotated back.
Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first);

/// encode_rows(). `tally` may be null; else it counts the rows (see Backend::collect_counts()).
Result<void> write_rows(const OpsContext& ops, const RowsView& rows, std::span<const Slot> slots,
                        const PoolView& pool, const TensorScales& scales = {},
                        ValueTally* tally = nullptr);

/// out = x for every head, rounded once. The views may be columns of wider rows.
void cast_rows(const OpsContext& ops, const CastRows& op);
inline void cast_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) {
  cast_rows(ops, {.x = x, .out = out});
}

}  // namespace lathe
