// Writes rows into the cache on the CPU: cache writes, RoPE and casts of layout/, split over
// threads by chunks of rows. Arguments as in ops/cache_write.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/execution.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/rope/rope_write.h"

namespace lathe {

Result<void> cpu_rope_write(const Execution& execution, const RopeWrite& op, const PoolView& pool);
Result<void> cpu_rotate_rows(const Execution& execution, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first, RopeDirection direction);
Result<void> cpu_write_rows(const Execution& execution, const RowsView& rows,
                            std::span<const Slot> slots, const PoolView& pool,
                            const TensorScales& scales, ValueTally* tally);
void cpu_cast_rows(const Execution& execution, const RowsView& x, const MutableRowsView& out);

}  // namespace lathe
