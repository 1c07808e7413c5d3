// Rotates and encodes index keys of the usual shape: 16 chunks with one scale; eight chunks rotate.
//
// A row is 388 bytes of memory traffic, which a copy moves in the time of 100 instructions. The
// general kernel needed 173, for addresses and to find the chunks that rotate. Here eight lanes
// hold a row, each with one chunk that rotates and one that does not, so no lane checks its chunks,
// and a warp's step is four rows.
#pragma once

#include "kernels/cuda/sm90/codec/encode.cuh"

namespace lathe::cuda {

inline constexpr std::uint32_t kKeyLanes = 8;  // lanes per row

// A lane's part of a row, loaded before any of it is used.
template <bool kInterleaved>
struct KeyChunks {
  static constexpr int kFactors = kInterleaved ? 4 : 8;

  Raw<bf16> rotary, plain, partner;
  float cosine[kFactors], sine[kFactors];
  std::int32_t position, slot;
};

// The chunks of one lane: its piece of a row, and their byte offsets.
struct KeyLane {
  std::uint32_t piece;
  std::uint32_t rotary, plain, partner;  // bytes from the start of a row

  __device__ __forceinline__ explicit KeyLane(const RopeParams& rope)
      : piece(lane_of_warp() % kKeyLanes) {
    const auto first = static_cast<std::uint32_t>(rope.first);
    rotary = (first + piece) * 16;
    plain = (kKeyLanes - first + piece) * 16;
    partner = (first + (piece ^ kKeyLanes / 2)) * 16;
  }
};

template <int kCount>
__device__ __forceinline__ void load_factors(Address at, float (&out)[kCount]) {
  LATHE_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    const auto v = load_global<uint4>(at + 4 * static_cast<Address>(i));
    out[i] = bits_to_float(v.x);
    out[i + 1] = bits_to_float(v.y);
    out[i + 2] = bits_to_float(v.z);
    out[i + 3] = bits_to_float(v.w);
  }
}

// Rounds products and sums as rotate() does, but leaves NaN as it is.
template <bool kInterleaved>
__device__ __forceinline__ void rotate_key(const KeyChunks<kInterleaved>& key, bool first_half,
                                           float (&x)[8]) {
  to_floats(key.rotary, x);
  if constexpr (kInterleaved) {
    LATHE_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const float a = x[i] * key.cosine[i / 2] - x[i + 1] * key.sine[i / 2];
      x[i + 1] = x[i] * key.sine[i / 2] + x[i + 1] * key.cosine[i / 2];
      x[i] = a;
    }
  } else {
    float partner[8];
    to_floats(key.partner, partner);
    const float sign = first_half ? -1.0f : 1.0f;
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) {
      // Multiplying by 1 or -1 is exact.
      x[i] = fmaf(partner[i] * key.sine[i], sign, x[i] * key.cosine[i]);
    }
  }
}

// A row with an infinity or NaN in it or in its result: rare, so not inlined; reads the row again.
__device__ __forceinline__ void write_special_key(const EncodeParams& p, const RunParams& run,
                                                  const KeyLane& lane, std::int64_t row, bool has) {
  const Target target = target_of<true, false>(p, row, static_cast<std::uint32_t>(row));
  const auto values = [&](std::uint32_t u, float(&x)[8]) {
    const Address at = row_address(p.rows, row, u == 0 ? lane.rotary : lane.plain);
    to_floats(load_raw<bf16>(at, true), x);
    const int c = u == 0 ? static_cast<int>(lane.piece) : -1;
    if (c < 0 || target.position < 0) return;
    Rotation<bf16> rotation;
    load_partner(p.rope, c, at, true, rotation);
    load_rotation<bf16, true>(p.rope, target.position, c, rotation);
    rotate(p.rope, rotation, c, x);
  };
  float amax = 0;
  LATHE_ROLLED
  for (std::uint32_t u = 0; u < 2; ++u) {
    float x[8];
    values(u, x);
    amax = fmaxf(amax, largest_finite(x));
  }
  for (int d = 1; d < static_cast<int>(kKeyLanes); d *= 2) amax = fmaxf(amax, shuffle_xor(amax, d));
  const TileScale tile = tile_scale<RunKind::e4m3_f32>(run, amax);
  if (!has || target.place.hole) return;
  if (lane.piece == 0) {
    store_scale<RunKind::e4m3_f32>(run, target.place.part(run.scale_start, run.scale_step),
                                   tile.scale);
  }
  LATHE_ROLLED
  for (std::uint32_t u = 0; u < 2; ++u) {
    float x[8];
    values(u, x);
    store_codes<RunKind::e4m3_f32>(
        run, target.place.part(run.start, run.step) + (u == 0 ? lane.rotary : lane.plain) / 2, x,
        tile.inverse);
  }
}

// Blocks per SM, which limits registers to 64 (interleaved) or 80: paired halves need one more
// chunk and eight more factors.
constexpr int key_blocks(bool interleaved) { return interleaved ? 4 : 3; }

// Grid: ceil(count / block_rows) blocks of p.threads; the block processes its rows in key_steps().
template <bool kInterleaved>
static __global__ void __launch_bounds__(kCodecThreads, (key_blocks(kInterleaved)))
    write_index_keys_kernel(const __grid_constant__ EncodeParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  const std::uint32_t rows = rows_of_block(p.count, first_row, p.block_rows);
  prefetch_list(p.slots, first_row, p.block_rows, p.count);
  prefetch_list(p.rope.positions, first_row, p.block_rows, p.count);
  const RunParams run = known_run<RunKind::e4m3_f32, true>(
      p.runs[0], encode_hints(RunKind::e4m3_f32, RunKind::e4m3_f32));
  const KeyLane lane(p.rope);
  constexpr int kSteps = key_steps(kInterleaved);
  const std::uint32_t first = threadIdx.x / kKeyLanes;  // row of the block
  const std::uint32_t step = blockDim.x / kKeyLanes;    // rows
  const auto row_of = [&](std::uint32_t s) {
    const std::uint32_t row = first + s * step;
    return row < rows ? row : rows - 1;
  };

  KeyChunks<kInterleaved> keys[kSteps];
  LATHE_UNROLL
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    const std::uint32_t row = row_of(s);
    keys[s].position = (p.rope.positions + first_row)[row];
    keys[s].slot = (p.slots + first_row)[row];
    const Address source = row_address(p.rows, first_row, 0) + Address{row} * p.rows.stride;
    keys[s].rotary = load_raw<bf16>(source + lane.rotary, true);
    keys[s].plain = load_raw<bf16>(source + lane.plain, true);
    if constexpr (!kInterleaved) keys[s].partner = load_raw<bf16>(source + lane.partner, true);
  }
  LATHE_UNROLL
  for (KeyChunks<kInterleaved>& key : keys) {
    const bool outside = static_cast<std::uint32_t>(key.position) >=
                         static_cast<std::uint32_t>(p.rope.table_positions);
    if (outside) key.position = 0;
    if (outside) key.slot = -1;
    const Address table = address_of(p.rope.table) +
                          Address{static_cast<std::uint32_t>(key.position)} * (64 * sizeof(float)) +
                          (kInterleaved ? lane.piece * 16 : lane.piece % 4 * 32);
    load_factors(table, key.cosine);
    load_factors(table + 32 * sizeof(float), key.sine);
  }
  bool special = false;
  LATHE_UNROLL
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    const KeyChunks<kInterleaved>& key = keys[s];
    float x[8], y[8];
    rotate_key<kInterleaved>(key, lane.piece < kKeyLanes / 2, x);
    to_floats(key.plain, y);
    float amax = 0;
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) amax = max_or_nan(max_or_nan(amax, fabsf(x[i])), fabsf(y[i]));
    LATHE_UNROLL
    for (int d = 1; d < static_cast<int>(kKeyLanes); d *= 2) {
      amax = max_or_nan(amax, shuffle_xor(amax, d));
    }
    if (float_to_bits(amax) >= 0x7f800000u) special = true;
    const TileScale tile = pow2_e4m3_scale(amax);
    const Place place = place_of(p.pages, key.slot);
    if (place.hole || first + s * step >= rows) continue;
    if (lane.piece == 0) {
      store_scale<RunKind::e4m3_f32>(run, place.part(run.scale_start, run.scale_step), tile.scale);
    }
    const Address values = place.part(run.start, run.step);
    store_value(run, values + lane.rotary / 2, to_raw_e4m3_numbers(x, tile.inverse), true);
    store_value(run, values + lane.plain / 2, to_raw_e4m3_numbers(y, tile.inverse), true);
  }
  if (!warp_any(special)) return;
  LATHE_ROLLED
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    write_special_key(p, run, lane, first_row + row_of(s), first + s * step < rows);
  }
}

/// The kernel instance for a call. dtype: of the rows.
inline auto encode_kernel_of(const EncodeParams& p, DType dtype, bool rope) {
  if (rope && p.index_keys && dtype == DType::bf16) {
    return p.rope.interleaved ? write_index_keys_kernel<true> : write_index_keys_kernel<false>;
  }
  if (p.whole) {
    return rope ? encode_kernel_of<true, true>(p, dtype) : encode_kernel_of<false, true>(p, dtype);
  }
  return rope ? encode_kernel_of<true, false>(p, dtype) : encode_kernel_of<false, false>(p, dtype);
}

}  // namespace lathe::cuda
