// Requantizes slots of mla_fp8_block of the usual shape, four tiles of 128 elements and a rope of
// 64, to slots of mla_fp8.
//
// Decoding and encoding an element needs 4 instructions, measuring its loss 5 more. Only the worst
// loss of all rows is reported, so elements are skipped if their error cannot exceed the one
// already reported: magnitudes bound errors, and a tile's largest magnitude is found in f16 with
// half an instruction per element. Eight lanes hold a row, each with two chunks of every tile and
// one of the rope, so accesses are 16 bytes and a warp's step is four rows.
#pragma once

#include "kernels/cuda/sm90/codec/requantize.cuh"

namespace lathe::cuda {

inline constexpr std::uint32_t kTileLanes = 8;  // lanes per row
inline constexpr int kTiles = 4;

// Elements below this magnitude cannot saturate, nor can their error exceed `worst`, the error
// reported so far; 0 if there is no such bound. Let y be the element over the scale: the nearest
// code is within |y| / 16, or 2^-10 among subnormal codes, and f32 rounding adds less than 2^-16 of
// that. The latter needs a scale in the normal range.
__device__ __forceinline__ float harmless_below(float worst, float scale) {
  const bool sane = scale >= 0x1p-60f && scale <= 0x1p60f;
  if (!sane || !(worst > scale * 0x1.01p-10f)) return 0;
  return fminf(worst * (16 * (1 - 0x1p-8f)), scale * kE4m3Max);
}

// Losses of two neighbours; the low 16 bits of `codes` are their codes.
__device__ __forceinline__ void see_pair(float scale, float first, float second,
                                         std::uint32_t codes, RequantLoss& loss) {
  float a, b;
  convert_from_e4m3x2(codes, a, b);
  loss.worst = fmaxf(loss.worst, fabsf(first - a * scale));
  loss.worst = fmaxf(loss.worst, fabsf(second - b * scale));
}

// Two chunks of e4m3 codes as f16, which represents all of their values.
struct TilePart {
  std::uint32_t halves[8];

  __device__ __forceinline__ explicit TilePart(const uint4& codes) {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      halves[2 * i] = e4m3x2_to_f16x2(words[i] & 0xffffu);
      halves[2 * i + 1] = e4m3x2_to_f16x2(words[i] >> 16);
    }
  }
  // NaN if a code is NaN.
  __device__ __forceinline__ float largest() const {
    std::uint32_t most = halves[0];
    LATHE_UNROLL
    for (int i = 1; i < 8; ++i) most = max_magnitude_f16x2(most, halves[i]);
    float low, high;
    widen_f16x2(most, low, high);
    return max_or_nan(fabsf(low), fabsf(high));
  }
  __device__ __forceinline__ void values(int chunk, float scale, float (&v)[8]) const {
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) widen_f16x2(halves[4 * chunk + i], v[2 * i], v[2 * i + 1]);
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) v[i] *= scale;
  }
  __device__ __forceinline__ uint4 encode(float scale, float inverse) const {
    float v[8];
    values(0, scale, v);
    const uint2 a = to_raw_e4m3_numbers(v, inverse);
    values(1, scale, v);
    const uint2 b = to_raw_e4m3_numbers(v, inverse);
    return {a.x, a.y, b.x, b.y};
  }
  // Losses of numbers encoded as `codes`. most: their largest magnitude. zero: a 0 that is opaque
  // to the compiler and makes it recompute the values, because there are no registers to keep them
  // during encoding.
  __device__ __forceinline__ void see_loss(const RunParams& dst, float scale, const uint4& codes,
                                           float most, std::uint32_t zero,
                                           RequantLoss& loss) const {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float first, second;
      widen_f16x2(halves[i] ^ zero, first, second);
      see_pair(dst.scale, first * scale, second * scale, words[i / 2] >> (16 * (i % 2)), loss);
    }
    // Multiplication by a positive number is monotonic, so the largest product bounds all.
    if (!(most * dst.inverse > kSaturates)) return;
    LATHE_UNROLL
    for (std::uint32_t half : halves) {
      float first, second;
      widen_f16x2(half ^ zero, first, second);
      loss.saturated += fabsf(first * scale * dst.inverse) > kSaturates ? 1 : 0;
      loss.saturated += fabsf(second * scale * dst.inverse) > kSaturates ? 1 : 0;
    }
  }
};

// The largest magnitude of eight bf16, or NaN.
__device__ __forceinline__ float largest_bf16(const uint4& v) {
  const std::uint32_t most =
      max_magnitude_bf16x2(max_magnitude_bf16x2(v.x, v.y), max_magnitude_bf16x2(v.z, v.w));
  float low, high;
  widen(most, low, high);
  return max_or_nan(fabsf(low), fabsf(high));
}

// Source and destination of a lane's row.
struct TileRow {
  Address from;
  Address to;
  bool writes;
};

// A lane's part of a row with an infinity or NaN: rare, so not inlined; reads its chunks again.
template <bool kReport>
__device__ __forceinline__ void requantize_special(const RequantParams& p, const TileRow& row,
                                                   RequantLoss& loss) {
  const RunParams src = known_run<RunKind::e4m3_f32, true>(p.src_runs[0]);
  const RunParams dst = known_run<RunKind::e4m3_tensor, true>(p.dst_runs[0]);
  const RunParams src_rope = known_run<RunKind::bf16, true>(p.src_runs[1]);
  const RunParams dst_rope = known_run<RunKind::e4m3_tensor, true>(p.dst_runs[1]);
  const std::uint32_t lane = lane_of_warp() % kTileLanes;
  LATHE_ROLLED
  for (std::uint32_t u = 0; u < 2 * kTiles; ++u) {
    const std::uint32_t chunk = (u / 2 * kTileLanes + lane) * 2 + u % 2;
    const StoredChunk stored =
        load_stored<RunKind::e4m3_f32>(src, row.from + static_cast<Address>(src.start),
                                       row.from + static_cast<Address>(src.scale_start), chunk);
    to_plain_chunk<RunKind::e4m3_f32, kReport, false>(
        dst, stored, row.to + static_cast<Address>(dst.start), chunk, loss);
  }
  const StoredChunk stored = load_stored<RunKind::bf16>(
      src_rope, row.from + static_cast<Address>(src_rope.start), 0, lane);
  to_plain_chunk<RunKind::bf16, kReport, false>(
      dst_rope, stored, row.to + static_cast<Address>(dst_rope.start), lane, loss);
}

// Requantizes a warp's four rows of a block and returns their losses.
template <bool kReport>
__device__ __forceinline__ RequantLoss requantize_tiles(const RequantParams& p,
                                                        std::int64_t first_row,
                                                        std::uint32_t rows) {
  const RunParams& src = p.src_runs[0];
  const RunParams& dst = p.dst_runs[0];
  const RunParams& src_rope = p.src_runs[1];
  const RunParams& dst_rope = p.dst_runs[1];
  const std::uint32_t lane = lane_of_warp() % kTileLanes;
  const std::uint32_t own = threadIdx.x / kTileLanes;
  const std::uint32_t at = own < rows ? own : rows - 1;
  const Place from = place_of(p.src, (p.src_slots + first_row)[at]);
  const std::int32_t to_slot = (p.dst_slots + first_row)[at];
  TileRow row;
  row.from = from.part(0, src.step);
  const auto scales = load_global<uint4>(row.from + static_cast<Address>(src.scale_start));
  const auto rope = load_global<uint4>(row.from + static_cast<Address>(src_rope.start) + lane * 16);
  const Address codes_at = row.from + static_cast<Address>(src.start) + lane * 16;
  uint4 codes[kTiles];
  LATHE_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    codes[t] = load_global<uint4>(codes_at + static_cast<Address>(t) * (16 * kTileLanes));
  }
  float harmless = 0, harmless_rope = 0;
  if constexpr (kReport) {
    // The worst loss so far, possibly stale, which is safe.
    const float worst = bits_to_float(static_cast<std::uint32_t>(load_shared_word(p.report) >> 32));
    harmless = harmless_below(worst, dst.scale);
    harmless_rope = harmless_below(worst, dst_rope.scale);
  }
  const Place to = place_of(p.dst, from.hole ? -1 : to_slot);
  row.to = to.part(0, dst.step);
  row.writes = own < rows && !to.hole;
  float top = 0;
  RequantLoss loss;
  loss.row = static_cast<std::uint32_t>(first_row) + own;
  const std::uint32_t scale_bits[kTiles] = {scales.x, scales.y, scales.z, scales.w};
  const Address to_codes = row.to + static_cast<Address>(dst.start) + lane * 16;
  LATHE_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    const float scale = bits_to_float(scale_bits[t]);
    const TilePart part(codes[t]);
    const float most = fabsf(part.largest() * scale);
    top = max_or_nan(top, most);
    const uint4 out = part.encode(scale, dst.inverse);
    if (row.writes) store_global(to_codes + static_cast<Address>(t) * (16 * kTileLanes), out);
    if (kReport && most >= harmless) part.see_loss(dst, scale, out, most, p.zero, loss);
  }
  const float most = largest_bf16(rope);
  top = max_or_nan(top, most);
  float before[8];
  to_floats(Raw<bf16>{rope}, before);
  const uint2 out = to_raw_e4m3_numbers(before, dst_rope.inverse);
  if (kReport && most >= harmless_rope) {
    float after[8];
    E4m3Chunk{out}.values(dst_rope.scale, after);
    loss.see(before, after);
    if (most * dst_rope.inverse > kSaturates) loss.count_saturated(before, dst_rope.inverse);
  }
  if (!row.writes) return {};
  store_global(row.to + static_cast<Address>(dst_rope.start) + lane * 8, out);
  if (!is_finite(top)) {
    loss.worst = 0;
    loss.saturated = 0;
    requantize_special<kReport>(p, row, loss);
  }
  return loss;
}

inline constexpr int kTileThreads = kMostTileRows * kTileLanes;
// Blocks per SM, which limits registers to 64.
inline constexpr int kTileBlocks = 16;

// Grid: ceil(count / block_rows) blocks of p.threads, eight threads per row.
template <bool kReport>
static __global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    requantize_tiles_kernel(const __grid_constant__ RequantParams p) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  const std::uint32_t rows = rows_of_block(p.count, first_row, p.block_rows);
  prefetch_list(p.src_slots, first_row, p.block_rows, p.count);
  prefetch_list(p.dst_slots, first_row, p.block_rows, p.count);
  const RequantLoss loss = requantize_tiles<kReport>(p, first_row, rows);
  if constexpr (kReport) report_loss(loss, p.report);
}

/// The kernel instance for a call.
inline auto requantize_kernel_of(const RequantParams& p, bool to_block) {
  const bool reports = p.report != nullptr;
  if (p.tiles) return reports ? requantize_tiles_kernel<true> : requantize_tiles_kernel<false>;
  return reports ? requantize_kernel_of<true>(p, to_block)
                 : requantize_kernel_of<false>(p, to_block);
}

}  // namespace lathe::cuda
