// Cache codecs: encode rows of numbers to the bytes of a pool and decode them, for every layout.
//
// A row is layout.row_elems() numbers in bf16 or f32: nope then rope; or key; or all heads' keys
// then all heads' values.
//
// Encoding, element by element (float_formats.h defines the conversions):
//   bf16 parts   bf16 input is copied bit for bit, f32 input is rounded by to_bf16
//   fp8 parts    to_e4m3(x * (1 / s)); 1 / s is computed once, in f32
//   fp4 parts    to_e2m1(x * (1 / s)); the low nibble is the even element
//   pad bytes    0
// f32 input is quantised directly, without rounding to bf16 first. s is the tensor scale
// (per_tensor), or follows from the tile's amax, its largest finite magnitude:
//   pow2_ceil, ue8m0 on e4m3   s = 2^ceil(log2(max(amax, 1e-4) / 448)), from the bits of the f32
//                              quotient
//   raw_f32                    s = max(amax, 1e-4) / 448
//   ue8m0 on e2m1 (mla_fp4)    s = 2^ceil(log2(max(amax / 6, 1e-10)))
// NaN and infinities do not count for amax. So an infinity saturates to the tile's maximum, a NaN
// affects only its own element, a tile of zeros has a normal scale, and 0 * infinity cannot occur.
// In bf16 and fp8 parts a NaN stays NaN. e2m1 has no NaN, so in fp4 parts it becomes a number, +6
// s.
//
// Decoding: v = code * s in f32, rounded once; to_bf16(v) for bf16 output. If v is NaN, because of
// its code or its scale, it is 0x7fc00000 with the code's sign. bf16 parts keep their bits (f32
// output: shifted).
//
// All functions check their arguments first and change nothing on an error. They run on the calling
// thread; callers divide rows among threads. Input and output must not overlap. Bytes of a pool
// outside the records of the given slots do not change.
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// `fast` uses the best SIMD target of the machine, `reference` computes element by element. Both
/// give the same bits.
#define LATHE_CODEC_PATHS(X) X(fast) X(reference)
LATHE_ENUM(CodecPath, LATHE_CODEC_PATHS)

/// Scales of ScalePolicy::per_tensor. mla_fp8 uses `key` for the whole row; gqa_fp8 uses `key` for
/// keys and `value` for values; other layouts ignore both. They must be in [2^-126, 2^126], so that
/// the reciprocal is finite.
struct TensorScales {
  float key = 1;
  float value = 1;
};

/// Encodes row i into slots[i]. rows: [N, row_elems] bf16 or f32; slots: [N], -1 skips the row. If
/// several rows have the same slot, the last one is stored. Errors: rows of another dtype, width or
/// count; a slot outside the pool; a scale out of range; an inconsistent view.
Result<void> encode_rows(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                         const TensorScales& scales = {}, CodecPath path = CodecPath::fast);

/// Decodes slots first .. first + out.rows - 1. out: [N, row_elems] bf16 or f32. Errors: like
/// encode_rows(); slots beyond the pool.
Result<void> decode_rows(const ConstPoolView& pool, Slot first, const MutableRowsView& out,
                         const TensorScales& scales = {}, CodecPath path = CodecPath::fast);

/// Decodes slots[i] to row i of out: [N, row_elems] bf16 or f32. A slot may occur several times, so
/// the list may be longer than the pool (shared prefixes). -1 gives a row of zeros. Errors: like
/// encode_rows().
Result<void> gather_decode(const ConstPoolView& pool, std::span<const Slot> slots,
                           const MutableRowsView& out, const TensorScales& scales = {},
                           CodecPath path = CodecPath::fast);

/// What requantize() lost: differences between the decoded f32 values before and after. An element
/// that is NaN before, or equal after, has no error.
struct RequantReport {
  float worst_abs_error = 0;  // infinite if a stored infinity was saturated
  Slot worst_slot;            // source slot of the first row with that error; a hole if none
  // Elements with |x| above 464 times the new scale: they would round beyond e4m3's maximum, 448.
  // From 448 to 464 they round to it, which is an error but not a saturation.
  std::int64_t saturated = 0;
};

/// Converts src_slots[i] of src to dst_slots[i] of dst. Both lists: [N]; -1 in either skips the
/// pair. Both layouts must have the same dims. Pairs:
///   mla_fp8 -> mla_fp8_block   nope bytes copied, every tile scale = src_scales.key, rope =
///                              bf16(e4m3 * src_scales.key); exact at scale 1
///   mla_fp8_block -> mla_fp8   decoded to f32, then quantised at dst_scales.key; lossy
/// Errors: another pair, different dims; src_scales.key not a power of two although dst has policy
/// pow2_ceil; slots and scales, like encode_rows().
Result<RequantReport> requantize(const ConstPoolView& src, std::span<const Slot> src_slots,
                                 const PoolView& dst, std::span<const Slot> dst_slots,
                                 const TensorScales& src_scales = {},
                                 const TensorScales& dst_scales = {},
                                 CodecPath path = CodecPath::fast);

}  // namespace lathe
