// Writes rows into the cache: rotation, quantisation and storing. The bytes are those of
// layout/rope/rope_write.h and layout/codec/codec.h, which say what is computed.
//
// Errors are those of the layout's functions, for arguments that contradict each other; some rows
// may then have been written.
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

/// rope_quantize_write.
Result<void> rope_write(const OpsContext& ops, const RopeWrite& op, const PoolView& pool);

/// apply_rope, forward, in place. rows: [T, heads * width] f32 or bf16.
Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                         std::span<const LocalPos> positions, const MutableRowsView& rows,
                         std::int64_t heads, std::int64_t first);

/// apply_rope, inverse, in place: what attention makes of rotated values (DeepSeek V4). On a host
/// only.
Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first);

/// encode_rows. `tally`, which may be null, counts the rows (Backend::collect_counts).
Result<void> write_rows(const OpsContext& ops, const RowsView& rows, std::span<const Slot> slots,
                        const PoolView& pool, const TensorScales& scales = {},
                        ValueTally* tally = nullptr);

/// out = x, rounded once, of every head. Views may be columns of wider rows.
void cast_rows(const OpsContext& ops, const CastRows& op);
inline void cast_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) {
  cast_rows(ops, {.x = x, .out = out});
}

}  // namespace lathe
