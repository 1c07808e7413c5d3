// Checks of RoPE operations for all devices. They do not read lists, which may be in GPU memory.
// Internal to codecs.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/pool_view.h"
#include "layout/rope/rope_write.h"

namespace lathe {

/// A RopeWrite with the sizes of its lists.
struct RopeWriteShape {
  RowsView k;
  RowsView q;
  MutableRowsView q_out;
  std::int64_t positions = 0;
  std::int64_t slots = 0;
  std::int32_t table_dim = 0;  // 0: no table
  RopePlace place = RopePlace::last;
  TensorScales scales;
  float q_scale = 1;
};
Result<void> check_rope_write(const RopeWriteShape& op, const ConstPoolView& pool);

Result<void> check_apply_rope(const RowsView& rows, std::int64_t positions, std::int32_t table_dim,
                              std::int64_t heads, std::int64_t first);

}  // namespace lathe
