// Applies RoPE, quantises and writes latent or index keys to the cache, in one operation. All such
// keys are written here, whichever kernels read the cache.
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

/// Place of the rotary part in a row and in a head: last in latent rows and V4's index keys, first
/// in DeepSeek V3.2's index keys.
#define LATHE_ROPE_PLACES(X) X(last) X(first)
LATHE_ENUM(RopePlace, LATHE_ROPE_PLACES)

/// T tokens. W is the layout's row_elems().
struct RopeWrite {
  RowsView k;                           // [T, W] bf16 or f32, not rotated
  RowsView q = {};                      // [T, heads * W] bf16 or f32, not rotated; no rows: no q
  std::span<const LocalPos> positions;  // [T]; may be empty if table is null
  std::span<const Slot> slots;          // [T]
  const RopeTable* table = nullptr;     // null if and only if nothing rotates (rope = 0)
  RopePlace place = RopePlace::last;
  TensorScales scales = {};     // the pool's scales, for per-tensor layouts
  float q_scale = 1;            // e4m3 q: to_e4m3(x * (1 / q_scale))
  MutableRowsView q_out = {};   // [T, heads * W] f32, bf16 or e4m3; must not overlap q
  ValueTally* tally = nullptr;  // counts the rotated rows of k
};

/// Rotates the rotary part of k in f32 and encodes the row into its slot, with the bytes of
/// encode_rows() on the rotated f32 row; elements outside the rotary part are not rounded before.
/// Rotates q in the same way and writes it to q_out, rounded once; if both have the same format,
/// elements outside the rotary part are copied bit for bit. A token with position or slot -1 writes
/// nothing to the pool and zeros to q_out. Errors, with nothing written: a grouped-query layout
/// (use apply_rope() and encode_rows()); a table with another dim than the layout's rope or, for
/// index keys, one that is wider than the key or not a multiple of 16; positions beyond the table;
/// counts, widths or dtypes other than the above; slots and scales, like encode_rows().
Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool,
                                 CodecPath path = CodecPath::fast);

}  // namespace lathe
