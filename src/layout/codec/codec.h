// Cache codecs: rows of numbers to the bytes of a pool and back, for every layout.
//
// A row is layout.row_elems() numbers in bf16 or f32, in the order that CacheLayout states (nope
// then rope; key; all heads' keys then all heads' values).
//
// What is written, element by element (float_formats.h defines the conversions):
//   bf16 parts   bf16 input is copied bit for bit, f32 input is rounded by to_bf16
//   fp8 parts    to_e4m3(x * (1 / s)), the reciprocal taken once in f32
//   fp4 parts    to_e2m1(x * (1 / s)), low nibble = even element; e2m1 has no NaN, so a NaN becomes
//                +6 of its tile
//   pad bytes    0
// f32 input is quantised directly, never through bf16. s is the tensor scale (per_tensor), or comes
// from the tile's amax, the largest finite magnitude (NaN and infinities do not count):
//   pow2_ceil, ue8m0 on e4m3   s = 2^ceil(log2(max(amax, 1e-4) / 448)), read off the f32 quotient
//   raw_f32                    s = max(amax, 1e-4) / 448
//   ue8m0 on e2m1 (mla_fp4)    s = 2^ceil(log2(max(amax / 6, 1e-10)))
// So an infinity saturates to the tile's maximum, a NaN stays in its own element, a zero tile gives
// zeros under an ordinary scale, and no 0 * infinity arises.
//
// What is read: v = code * s in f32, one rounding; to_bf16(v) where bf16 is wanted. A v that is
// NaN, from its code or from its scale, is 0x7fc00000 with the code's sign. Plain bf16 parts keep
// their bits (f32 output: shifted).
//
// All functions check everything first and change nothing on an error. They run on the calling
// thread; a caller splits rows between threads. Input and output must not overlap. Bytes of a pool
// outside the records of the named slots stay as they are.
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// `fast` runs on the best SIMD target of the machine; `reference` element by element. Same bits.
#define LATHE_CODEC_PATHS(X) X(fast) X(reference)
LATHE_ENUM(CodecPath, LATHE_CODEC_PATHS)

/// Scales of ScalePolicy::per_tensor: mla_fp8 uses `key` for the whole row, gqa_fp8 one for each.
/// Other layouts ignore them. Both lie in [2^-126, 2^126], so that the reciprocal is finite.
struct TensorScales {
  float key = 1;
  float value = 1;
};

/// Writes row i to slots[i]. rows: [N, row_elems] bf16 or f32; slots: [N], -1 skips the row. If
/// rows share a slot, the last one wins. Errors: rows of another dtype, width or count; a slot
/// outside the pool; a scale out of range; an inconsistent view.
Result<void> encode_rows(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                         const TensorScales& scales = {}, CodecPath path = CodecPath::fast);

/// Reads slots first .. first + out.rows - 1. out: [N, row_elems] bf16 or f32.
/// Errors: as encode_rows; a range that leaves the pool.
Result<void> decode_rows(const ConstPoolView& pool, Slot first, const MutableRowsView& out,
                         const TensorScales& scales = {}, CodecPath path = CodecPath::fast);

/// Reads slots[i] into row i of out: [N, row_elems] bf16 or f32. A slot may appear more than once,
/// the list may be longer than the pool (prefix sharing), and -1 gives a row of zeros. Errors: as
/// encode_rows.
Result<void> gather_decode(const ConstPoolView& pool, std::span<const Slot> slots,
                           const MutableRowsView& out, const TensorScales& scales = {},
                           CodecPath path = CodecPath::fast);

/// What a requantisation lost: the differences between the f32 values that decode gives before and
/// after. Elements that are NaN before or equal after count as no error.
struct RequantReport {
  float worst_abs_error = 0;   // infinite where a stored infinity was saturated
  Slot worst_slot;             // source slot of the first row that has it; a hole if there is none
  std::int64_t saturated = 0;  // elements that rounding alone would have sent beyond +-448
};

/// Rewrites src_slots[i] of src as dst_slots[i] of dst; both lists [N], a -1 in either skips the
/// pair. The dims of both layouts are equal. Pairs:
///   mla_fp8 -> mla_fp8_block   nope bytes copied, every tile scale = src_scales.key, rope =
///                              bf16(e4m3 * src_scales.key); exact at scale 1
///   mla_fp8_block -> mla_fp8   decoded to f32, then quantised at dst_scales.key; lossy
/// Errors: another pair or other dims; src_scales.key not a power of two where dst is pow2_ceil;
/// slots and scales as encode_rows.
Result<RequantReport> requantize(const ConstPoolView& src, std::span<const Slot> src_slots,
                                 const PoolView& dst, std::span<const Slot> dst_slots,
                                 const TensorScales& src_scales = {},
                                 const TensorScales& dst_scales = {},
                                 CodecPath path = CodecPath::fast);

}  // namespace lathe
