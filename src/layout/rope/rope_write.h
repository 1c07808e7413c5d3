// The one place where RoPE is applied and a latent or index key enters the cache: rotate, quantise
// and write in one operation, whatever pair of kernels reads the cache.
#pragma once

#include <span>

#include "base/enum.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/codec/codec.h"
#include "layout/codec/value_tally.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"
#include "layout/rope/rope.h"

namespace lathe {

/// Where a row's (and a head's) rotary part lies. Latent rows carry it last, DeepSeek V3.2's index
/// keys first, V4's index keys last.
#define LATHE_ROPE_PLACES(X) X(last) X(first)
LATHE_ENUM(RopePlace, LATHE_ROPE_PLACES)

/// T tokens. W is the layout's row_elems().
struct RopeWrite {
  RowsView k;                           // [T, W] bf16 or f32, not rotated
  RowsView q = {};                      // [T, heads * W] bf16 or f32, not rotated; no rows: absent
  std::span<const LocalPos> positions;  // [T]; may be empty where nothing rotates
  std::span<const Slot> slots;          // [T]
  const RopeTable* table = nullptr;     // null exactly where nothing rotates (rope = 0)
  RopePlace place = RopePlace::last;
  TensorScales scales = {};     // of the pool, for per-tensor layouts
  float q_scale = 1;            // e4m3 q: to_e4m3(x * (1 / q_scale))
  MutableRowsView q_out = {};   // [T, heads * W] f32, bf16 or e4m3; must not overlap q
  ValueTally* tally = nullptr;  // counts the rotated rows
};

/// Rotates k's rotary part in f32, once, and encodes the row into its slot: the bytes of
/// encode_rows on the rotated f32 row, whose other elements are not rounded. Rotates q in the same
/// way and leaves it in q_out's format, rounded once; elements of q outside the rotary part are
/// copied bit for bit where both formats are equal. A token whose position or slot is -1 writes
/// nothing to the pool and leaves a zero row in q_out. Errors, with nothing written: a
/// grouped-query layout (apply_rope and encode_rows serve those); a table whose dim is not the
/// layout's rope, or, for an index key, wider than the key or not a multiple of 16; positions
/// beyond the table; counts, widths and dtypes that differ from the above; slots and scales as
/// encode_rows.
Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool,
                                 CodecPath path = CodecPath::fast);

}  // namespace lathe
