// Encodes rows to slots, or heads of rows to rows, and rotates their rotary part.
#pragma once

#include "base/dtype.h"
#include "kernels/cuda/sm90/codec/cache_hints.cuh"
#include "kernels/cuda/sm90/codec/rotate_chunk.cuh"
#include "kernels/cuda/sm90/codec/scale_words.cuh"
#include "kernels/cuda/sm90/codec/stage.cuh"
#include "kernels/cuda/sm90/codec/value_losses.cuh"

namespace lathe::cuda {

// Destination of a lane's row.
struct Target {
  Place place;            // a hole: nothing is written
  std::int32_t position;  // -1: a hole, or zeros if zero_holes
};

// entry: used with kOrdered.
template <bool kRope, bool kOrdered>
__device__ __forceinline__ Target target_of(const EncodeParams& p, std::int64_t row,
                                            std::uint32_t token, const OrderEntry& entry = {}) {
  // Both loads are issued before either is used.
  const std::int32_t listed = kOrdered ? entry.slot : p.slots != nullptr ? p.slots[token] : 0;
  Target out;
  out.position = kRope && p.rope.positions != nullptr ? p.rope.positions[token] : 0;
  bool hole =
      (kOrdered || p.slots != nullptr) && static_cast<std::uint32_t>(listed) >= p.slot_count;
  if constexpr (kRope) {
    if (p.rope.half > 0 && out.position >= p.rope.table_positions) hole = true;
    if (hole || out.position < 0) out.position = -1;
    hole = out.position < 0 && !p.zero_holes;
  }
  const std::int32_t slot = kRope && p.to_rows ? static_cast<std::int32_t>(row) : listed;
  out.place = place_of(p.pages, hole ? -1 : slot);
  return out;
}

template <RunKind kKind, class To>
__device__ __forceinline__ void store_scale(const RunParams& run, To at, float scale) {
  if constexpr (kKind == RunKind::e4m3_f32) {
    store_scale_bits(run, at, float_to_bits(scale), run.vector_scale);
  } else {
    store_scale_bits(run, at, static_cast<unsigned char>(float_to_bits(scale) >> 23), true);
  }
}

template <class T, bool kRotated>
__device__ __forceinline__ Raw<bf16> bf16_chunk(const Raw<T>& raw, const float (&x)[8]) {
  if constexpr (!kRotated && std::is_same_v<T, bf16>) return raw;  // copied bit for bit
  return to_raw_bf16(x);
}

// Stores one chunk of a run without tiles.
template <class T, RunKind kKind, bool kRotated, class To>
__device__ __forceinline__ void store_plain(const RunParams& run, To values, std::uint32_t chunk,
                                            const Raw<T>& raw, const float (&x)[8]) {
  if constexpr (kKind == RunKind::bf16) {
    store_value(run, values + 16 * Address{chunk}, bf16_chunk<T, kRotated>(raw, x).v, run.vector);
  } else if constexpr (kKind == RunKind::f32) {
    store_raw(values + 32 * Address{chunk}, to_raw_f32(x), run.vector);
  } else {
    store(values + 8 * Address{chunk}, to_raw_e4m3(x, run.inverse), run.vector);
  }
}

// log2 of the chunks of a tile.
template <RunKind kKind>
__device__ __forceinline__ int tile_shift(const RunParams& run) {
  return kKind == RunKind::e2m1_ue8m0 ? kFp4TileShift : run.tile_shift;
}

// Whether a tile is all chunks of a row in this warp, rather than those of one round's lanes.
template <RunKind kKind>
__device__ __forceinline__ bool tile_spans(const RunParams& run) {
  return kKind != RunKind::e2m1_ue8m0 && run.tile_shift > run.lanes.shift;
}

template <RunKind kKind, class To>
__device__ __forceinline__ void store_codes(const RunParams& run, To at, const float (&x)[8],
                                            float inverse) {
  if constexpr (kKind == RunKind::e2m1_ue8m0) {
    store_value(run, at, to_raw_e2m1(x, inverse), run.vector);
  } else {
    store_value(run, at, to_raw_e4m3(x, inverse), run.vector);
  }
}

// Neighbouring lanes of a row, 2^shift of them, exchange their maxima.
template <int kCount, class Word, class Max>
__device__ __forceinline__ void exchange_maxima(Word* amax /* [kCount] */, int shift, Max max) {
  for (int d = 1; d < 1 << shift; d *= 2) {
    LATHE_UNROLL
    for (int i = 0; i < kCount; ++i) amax[i] = max(amax[i], shuffle_xor(amax[i], d));
  }
}

// Addresses for the codes and scales of a lane's chunks.
template <RunKind kKind, class To>
struct TileTarget {
  // Scales of v4_fp8 are in a separate plane and are stored there directly, not staged.
  using Scales = std::conditional_t<kKind == RunKind::e4m3_ue8m0, Address, To>;

  To values;      // of the first chunk
  Scales scales;  // of the first chunk's tile
  std::uint32_t value_step;
  std::uint32_t scale_step;
  bool leads;  // stores scales: the first lane of a tile
  bool once;   // all chunks of the row in this warp are one tile

  __device__ __forceinline__ TileTarget(const RunParams& run, const Hold& hold, To run_values,
                                        Scales run_scales)
      : values(run_values + Address{hold.chunk} * kCodeBytes),
        scales(run_scales +
               Address{run.first_tile + (hold.chunk >> tile_shift<kKind>(run))} * kScaleBytes),
        value_step(hold.step * kCodeBytes),
        scale_step((hold.step >> tile_shift<kKind>(run)) * kScaleBytes),
        leads((hold.chunk & ((1u << tile_shift<kKind>(run)) - 1)) == 0),
        once(tile_spans<kKind>(run)) {}

  __device__ __forceinline__ void store_scale_of(const RunParams& run, std::uint32_t u,
                                                 float scale) const {
    if (!leads || (once && u > 0)) return;
    store_scale<kKind>(run, scales + Address{u * scale_step}, scale);
  }

  static constexpr std::uint32_t kCodeBytes = kKind == RunKind::e2m1_ue8m0 ? 4 : 8;
  static constexpr std::uint32_t kScaleBytes = kKind == RunKind::e4m3_f32 ? 4 : 1;
};

// Stores the scales of a lane's tiles: each one as soon as it is known, or all of a row and its pad
// as one word, because eight byte stores are eight accesses to the same sector.
template <RunKind kKind, int kCount, class To>
class ScaleWriter {
 public:
  __device__ __forceinline__ ScaleWriter(const RunParams& run, const TileTarget<kKind, To>& to)
      : run_(run), to_(to) {}
  __device__ __forceinline__ void put(std::uint32_t u, float scale) {
    if constexpr (kScaleWord<kKind, kCount>) {
      word_ |= std::uint64_t{float_to_bits(scale) >> 23} << (8 * u);
    } else {
      to_.store_scale_of(run_, u, scale);
    }
  }
  __device__ __forceinline__ void finish() const {
    if constexpr (kScaleWord<kKind, kCount>) {
      if (to_.leads) store_scale_bits(run_, to_.scales, word_, true);
    }
  }

 private:
  const RunParams& run_;
  const TileTarget<kKind, To>& to_;
  std::uint64_t word_ = 0;
};

// Encodes chunks of a run with tiles, from f32: values(u, x) gives chunk u. The threads of a tile
// exchange their maxima.
template <RunKind kKind, int kCount, class To, class Values>
__device__ __forceinline__ void encode_values(const RunParams& run, const TileTarget<kKind, To>& to,
                                              Values values, bool writes) {
  const auto max = [](float a, float b) { return fmaxf(a, b); };
  float amax[kCount];
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    float x[8];
    values(u, x);
    amax[u] = largest_finite(x);
  }
  if (to.once) {
    LATHE_UNROLL
    for (int u = 1; u < kCount; ++u) amax[0] = max(amax[0], amax[u]);
    exchange_maxima<1>(amax, run.lanes.shift, max);
    LATHE_UNROLL
    for (int u = 1; u < kCount; ++u) amax[u] = amax[0];
  } else {
    exchange_maxima<kCount>(amax, tile_shift<kKind>(run), max);
  }
  if (!writes) return;
  ScaleWriter<kKind, kCount, To> scales(run, to);
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const TileScale tile = tile_scale<kKind>(run, amax[u]);
    const auto round = static_cast<std::uint32_t>(u);
    scales.put(round, tile.scale);
    float x[8];
    values(u, x);
    store_codes<kKind>(run, to.values + Address{round * to.value_step}, x, tile.inverse);
  }
  scales.finish();
}

// As encode_values() for rare cases: not inlined, and reads the chunks again. load(u) gives chunk u
// as it is in memory.
template <RunKind kKind, int kCount, class To, class Load>
__device__ __forceinline__ void encode_special(const RunParams& run,
                                               const TileTarget<kKind, To>& to, Load load,
                                               bool writes) {
  const auto max = [](float a, float b) { return fmaxf(a, b); };
  float amax[1] = {0};
  LATHE_ROLLED
  for (std::uint32_t u = 0; to.once && u < kCount; ++u) {
    float x[8];
    to_floats(load(u), x);
    amax[0] = fmaxf(amax[0], largest_finite(x));
  }
  if (to.once) exchange_maxima<1>(amax, run.lanes.shift, max);
  ScaleWriter<kKind, kCount, To> scales(run, to);
  LATHE_ROLLED
  for (std::uint32_t u = 0; u < kCount; ++u) {
    float x[8];
    to_floats(load(u), x);
    if (!to.once) {
      amax[0] = largest_finite(x);
      exchange_maxima<1>(amax, tile_shift<kKind>(run), max);
    }
    if (!writes) continue;
    const TileScale tile = tile_scale<kKind>(run, amax[0]);
    scales.put(u, tile.scale);
    store_codes<kKind>(run, to.values + Address{u * to.value_step}, x, tile.inverse);
  }
  if (writes) scales.finish();
}

// As encode_values(), for bf16 as in memory: finds maxima on bf16 bits, two chunks in a word.
// Returns false and writes nothing if a chunk of the warp has a NaN or infinity.
template <RunKind kKind, int kCount, class To>
__device__ __forceinline__ bool encode_tiles(const RunParams& run, const TileTarget<kKind, To>& to,
                                             const Raw<bf16> (&raw)[kCount], bool writes) {
  constexpr int kPairs = (kCount + 1) / 2;
  std::uint32_t amax[kPairs];
  std::uint32_t special = 0;
  LATHE_UNROLL
  for (int i = 0; i < kPairs; ++i) {
    const int second = 2 * i + 1 < kCount ? 2 * i + 1 : 2 * i;
    amax[i] = largest_magnitudes(raw[2 * i], raw[second]);
    special |= (amax[i] + 0x00800080u) & 0x80008000u;
  }
  if (warp_any(special != 0)) return false;
  const auto max = [](std::uint32_t a, std::uint32_t b) { return max_u16x2(a, b); };
  if (to.once) {
    LATHE_UNROLL
    for (int i = 1; i < kPairs; ++i) amax[0] = max(amax[0], amax[i]);
    amax[0] = max(amax[0], permute_bytes(amax[0], 0, 0x1032));
    exchange_maxima<1>(amax, run.lanes.shift, max);
    LATHE_UNROLL
    for (int i = 1; i < kPairs; ++i) amax[i] = amax[0];
  } else {
    exchange_maxima<kPairs>(amax, tile_shift<kKind>(run), max);
  }
  const auto scale_of = [&](std::uint32_t u) {
    const std::uint32_t bits = u % 2 == 0 ? amax[u / 2] << 16 : amax[u / 2] & 0xffff0000u;
    return tile_scale<kKind>(run, bits_to_float(bits));
  };
  if constexpr (kScalesJoined<kKind, kCount>) {
    std::uint32_t word = 0;
    LATHE_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      word |= float_to_bits(scale_of(u).scale) >> 23 << (8 * u);
    }
    word = kCount == 4 ? transpose_scales(word) : pair_scales(word);
    const bool stores = to.leads && (kCount == 4 || (lane_of_warp() & 2) == 0);
    const std::int64_t ahead = kCount == 4 ? swapped_scales_at(run.lanes) : 0;
    if (writes && stores) {
      store_scale_bits(run, to.scales + static_cast<Address>(ahead), word, true);
    }
  }
  if (!writes) return true;
  ScaleWriter<kKind, kCount, To> scales(run, to);
  LATHE_UNROLL
  for (std::uint32_t u = 0; u < kCount; ++u) {
    const TileScale tile = scale_of(u);
    if constexpr (!kScalesJoined<kKind, kCount>) scales.put(u, tile.scale);
    const To values = to.values + Address{u * to.value_step};
    if constexpr (kKind == RunKind::e2m1_ue8m0) {
      store_value(run, values, to_raw_e2m1_numbers(raw[u], tile.inverse), run.vector);
    } else {
      float x[8];
      to_floats(raw[u], x);
      store_value(run, values, to_raw_e4m3_numbers(x, tile.inverse), run.vector);
    }
  }
  scales.finish();
  return true;
}

template <class T, bool kWhole>
__device__ __forceinline__ void rotate_chunk(const RopeParams& rope, std::int32_t position,
                                             int chunk, Rotation<T>& rotation, float (&x)[8]) {
  if (position < 0 || chunk < 0) return;
  load_rotation<T, kWhole>(rope, position, chunk, rotation);
  rotate(rope, rotation, chunk, x);
}

// All threads of the warp call it.
template <class T, RunKind kKind, int kCount, bool kRope, bool kRotate, bool kWhole, bool kOrdered,
          bool kStaged>
__device__ __forceinline__ void encode_batch(const EncodeParams& p, const RunParams& run,
                                             std::int64_t first_row, const Hold& hold,
                                             const Stage<kStaged>& stage, ValueLosses& losses) {
  const RopeParams& rope = p.rope;
  const bool vector = kWhole || p.rows.vector;
  const std::int64_t row = first_row + hold.row;
  const OrderEntry entry = kOrdered ? p.order[static_cast<std::uint32_t>(row)] : OrderEntry{};
  const std::uint32_t token = kOrdered ? entry.token : p.heads(static_cast<std::uint32_t>(row));
  const std::uint32_t head =
      kOrdered ? 0 : static_cast<std::uint32_t>(row) - token * p.heads.divisor;
  const Address source =
      row_address(p.rows, token, (run.first_chunk + hold.chunk) * (kChunk * sizeof(T))) +
      head * Address{p.head_bytes};

  // Rows are loaded before any slot is known: unless tokens are ordered, row addresses do not
  // depend on slots.
  Raw<T> raw[kCount];
  Rotation<T> rotation[kRotate ? kCount : 1];
  int rotary[kRotate ? kCount : 1];
  LATHE_UNROLL
  for (std::uint32_t u = 0; u < kCount; ++u) {
    const Address at = source + u * hold.step * (kChunk * sizeof(T));
    raw[u] = load_row<T>(run, at, vector);
    if constexpr (kRotate) {
      rotary[u] = rotary_chunk(rope, run.first_chunk + hold.chunk + u * hold.step);
      load_partner(rope, rotary[u], at, vector, rotation[u]);
    }
  }
  const Target target = target_of<kRope, kOrdered>(p, row, token, entry);
  const auto to_values = stage.part(target.place, hold.row, run.start, run.step);
  if constexpr (kRotate) sync_warp();  // in place: all reads precede the first write
  const bool writes = hold.has && !target.place.hole;
  if (run.first_chunk == 0 && hold.chunk == 0 && hold.has) stage.send(target.place, hold.row);
  if (!kScaleWord<kKind, kCount> && writes && run.first_chunk == 0 && hold.chunk == 0) {
    const Address pad = target.place.part(p.pad_start, p.pad_step);
    for (int i = 0; i < p.pad_bytes; ++i) {
      store_scale_bits(run, pad + static_cast<Address>(i), static_cast<unsigned char>(0), true);
    }
  }
  if constexpr (kRope && !kTiled<kKind>) {
    if (target.position < 0) {  // with zero_holes, a hole is written as zeros
      LATHE_UNROLL
      for (int u = 0; u < kCount; ++u) raw[u] = {};
    }
  }
  if constexpr (kTiled<kKind>) {
    const auto to_scales = [&] {
      if constexpr (kKind == RunKind::e4m3_ue8m0) {
        return target.place.part(run.scale_start, run.scale_step);
      } else {
        return stage.part(target.place, hold.row, run.scale_start, run.scale_step);
      }
    };
    const TileTarget<kKind, typename Stage<kStaged>::To> to(run, hold, to_values, to_scales());
    if constexpr (!kRotate && std::is_same_v<T, bf16>) {
      if (encode_tiles<kKind>(run, to, raw, writes)) return;
      return encode_special<kKind, kCount>(
          run, to,
          [&](std::uint32_t u) {
            return load_raw<T>(source + u * hold.step * (kChunk * sizeof(T)), vector);
          },
          writes);
    }
    if constexpr (kRotate) {
      float rotated[kCount][8] = {};
      LATHE_UNROLL
      for (int u = 0; u < kCount; ++u) {
        to_floats(raw[u], rotated[u]);
        rotate_chunk<T, kWhole>(rope, target.position, rotary[u], rotation[u], rotated[u]);
      }
      encode_values<kKind, kCount>(
          run, to,
          [&](int u, float(&x)[8]) {
            for (int i = 0; i < 8; ++i) x[i] = rotated[u][i];
          },
          writes);
    } else {
      encode_values<kKind, kCount>(
          run, to, [&](int u, float(&x)[8]) { to_floats(raw[u], x); }, writes);
    }
  } else {
    LATHE_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      float x[8];
      to_floats(raw[u], x);
      if constexpr (kRotate) {
        rotate_chunk<T, kWhole>(rope, target.position, rotary[u], rotation[u], x);
      }
      if (writes) {
        if constexpr (kKind == RunKind::e4m3_tensor) {
          if (p.counts != nullptr) losses.see(x, run.inverse);
        }
        store_plain<T, kKind, kRotate>(run, to_values, hold.chunk + u * hold.step, raw[u], x);
      }
    }
  }
}

// A run with one tile of an unusual number of chunks (index keys of other widths): a batch is one
// row, which is read again from the cache once its scale is known.
template <class T, RunKind kKind, bool kRope, bool kRotate, bool kWhole>
__device__ __forceinline__ void encode_wide_tile(const EncodeParams& p, const RunParams& run,
                                                 std::int64_t row) {
  const RopeParams& rope = p.rope;
  const bool vector = kWhole || p.rows.vector;
  const Address source = row_address(p.rows, row, run.first_chunk * kChunk * sizeof(T));
  const Target target =
      target_of<kRope, false>(p, row, static_cast<std::uint32_t>(row));  // rows have one head
  const Address to_values = target.place.part(run.start, run.step);
  const Address to_scales = target.place.part(run.scale_start, run.scale_step);
  const std::uint32_t chunks = run.lanes.chunks;
  const auto values = [&](std::uint32_t chunk, float(&x)[8]) {
    const Address at = source + Address{chunk} * (kChunk * sizeof(T));
    to_floats(load_raw<T>(at, vector), x);
    const int c = kRotate ? rotary_chunk(rope, run.first_chunk + chunk) : -1;
    if (c < 0 || target.position < 0) return;
    Rotation<T> rotation;
    load_partner(rope, c, at, vector, rotation);
    load_rotation<T, kWhole>(rope, target.position, c, rotation);
    rotate(rope, rotation, c, x);
  };
  float amax = 0;
  for (std::uint32_t chunk = lane_of_warp(); chunk < chunks; chunk += 32) {
    float x[8];
    values(chunk, x);
    amax = fmaxf(amax, largest_finite(x));
  }
  for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, shuffle_xor(amax, d));
  if (target.place.hole) return;
  const TileScale tile = tile_scale<kKind>(run, amax);
  if (lane_of_warp() == 0) {
    store_scale<kKind>(run, to_scales + TileTarget<kKind, Address>::kScaleBytes * run.first_tile,
                       tile.scale);
  }
  for (std::uint32_t chunk = lane_of_warp(); chunk < chunks; chunk += 32) {
    float x[8];
    values(chunk, x);
    store_codes<kKind>(run, to_values + Address{chunk} * TileTarget<kKind, Address>::kCodeBytes, x,
                       tile.inverse);
  }
}

template <class T, RunKind kKind, bool kRope, bool kRotate, bool kWhole, bool kOrdered,
          bool kStaged>
__device__ __forceinline__ void encode_batches(const EncodeParams& p, const RunParams& run,
                                               std::int64_t first_row, std::uint32_t rows,
                                               WarpBatches& batches, const Stage<kStaged>& stage,
                                               ValueLosses& losses) {
  constexpr Rounds kRounds = encode_rounds(kWhole, kRotate, kKind);
  batches.run(run.lanes.batches, [&](std::uint32_t batch) {
    const Hold hold = Hold::of<kWhole>(run.lanes, batch, rows);
    if (kRounds.many == kRounds.few || run.lanes.rounds == kRounds.many) {
      encode_batch<T, kKind, kRounds.many, kRope, kRotate, kWhole, kOrdered>(p, run, first_row,
                                                                             hold, stage, losses);
    } else {
      encode_batch<T, kKind, kRounds.few, kRope, kRotate, kWhole, kOrdered>(p, run, first_row, hold,
                                                                            stage, losses);
    }
  });
}

// Tiles rotate only in layouts without a separate bf16 run. Index keys have one run and may rotate;
// they have their own kernels, because rotation with tiles needs many registers and their scales
// are in another plane.
template <RunKind kFirst, RunKind kSecond>
inline constexpr bool kTilesRotate = kTiled<kFirst>&& kFirst == kSecond;

template <RunKind kFirst, RunKind kSecond>
inline constexpr bool kOneRun = kTilesRotate<kFirst, kSecond>&& kFirst == RunKind::e4m3_f32;

// kRotates: the run may rotate.
template <class T, RunKind kKind, bool kRope, bool kRotates, bool kWhole, bool kOrdered,
          bool kStaged>
__device__ __forceinline__ void encode_run(const EncodeParams& p, const RunParams& run,
                                           std::int64_t first_row, std::uint32_t rows,
                                           WarpBatches& batches, const Stage<kStaged>& stage,
                                           ValueLosses& losses) {
  if (!kStaged && !kOrdered && kKind == RunKind::e4m3_f32 && (kRotates || !kRope) &&
      run.tile_shift == kWideTile) {
    return batches.run(run.lanes.batches, [&](std::uint32_t batch) {
      if (batch < rows)
        encode_wide_tile<T, kKind, kRope, kRotates, kWhole>(p, run, first_row + batch);
    });
  }
  if (kRotates && run.rotates) {
    return encode_batches<T, kKind, kRope, kRotates, kWhole, kOrdered>(p, run, first_row, rows,
                                                                       batches, stage, losses);
  }
  encode_batches<T, kKind, kRope, false, kWhole, kOrdered>(p, run, first_row, rows, batches, stage,
                                                           losses);
}

// Blocks per SM, which limits registers: as many as work without spills.
template <class T, RunKind kFirst, RunKind kSecond, bool kRope, bool kWhole>
constexpr int encode_blocks() {
  if (sizeof(T) == 4) return 1;
  if (!kRope) return kFirst == RunKind::e4m3_ue8m0 ? 4 : 5;
  if (!kWhole) return 2;
  if (kOneRun<kFirst, kSecond>) return 3;
  return kFirst == RunKind::e4m3_f32 ? 5 : 4;
}

// Grid: ceil(count / block_rows) blocks of p.threads. T: type of the rows, bf16 or float. kFirst
// and kSecond: how the runs are stored. kOrdered: tokens are processed in p.order.
template <class T, RunKind kFirst, RunKind kSecond, bool kRope, bool kWhole, bool kOrdered = false>
static __global__ void __launch_bounds__(kCodecThreads,
                                         (encode_blocks<T, kFirst, kSecond, kRope, kWhole>()))
    encode_kernel(const __grid_constant__ EncodeParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  const std::uint32_t rows = rows_of_block(p.count, first_row, p.block_rows);
  if (p.heads.divisor == 1) {
    if (kOrdered) {  // two words per token
      prefetch_list(&p.order->slot, 2 * first_row, 2 * p.block_rows, 2 * p.count);
    } else {
      prefetch_list(p.slots, first_row, p.block_rows, p.count);
    }
    if (kRope) prefetch_list(p.rope.positions, first_row, p.block_rows, p.count);
  }
  LATHE_DYNAMIC_SHARED(shared);
  const Stage<!kRope && !kOrdered && staged(kFirst, kSecond, kWhole)> stage(shared, p.block_rows,
                                                                            p.runs[0].step);
  WarpBatches batches;
  ValueLosses losses;
  constexpr bool kFirstRotates = kRope && (!kTiled<kFirst> || kTilesRotate<kFirst, kSecond>);
  constexpr Hints kHints =
      kOrdered ? ordered_hints(kFirst, kSecond) : encode_hints(kFirst, kSecond);
  encode_run<T, kFirst, kRope, kFirstRotates, kWhole, kOrdered>(
      p, known_run<kFirst, kWhole>(p.runs[0], kHints), first_row, rows, batches, stage, losses);
  if (p.run_count == 2 && !kOneRun<kFirst, kSecond>) {
    encode_run<T, kSecond, kRope, kRope, kWhole, kOrdered>(
        p, known_run<kSecond, kWhole>(p.runs[1], kHints), first_row, rows, batches, stage, losses);
  }
  stage.write(rows);
  if constexpr (kFirst == RunKind::e4m3_tensor || kSecond == RunKind::e4m3_tensor) {
    if (p.counts != nullptr) losses.add_to(p.counts);
  }
}

template <bool kRope, bool kWhole>
auto encode_kernel_of(const EncodeParams& p, DType dtype) {
  constexpr RunKind kTile = RunKind::e4m3_f32;
  const auto of_kinds = [&](auto first, auto second) {
    if constexpr (!kRope && kWhole && kTiled<first>) {  // where can_order() allows it
      if (p.order != nullptr) return encode_kernel<bf16, first, second, kRope, kWhole, true>;
    }
    return dtype == DType::bf16 ? encode_kernel<bf16, first, second, kRope, kWhole>
                                : encode_kernel<float, first, second, kRope, kWhole>;
  };
  if (p.runs[0].kind == kTile && p.run_count == 1) {
    static_assert(kOneRun<kTile, kTile>);
    return of_kinds(Constant<kTile>(), Constant<kTile>());
  }
  return visit_kinds(p.runs, of_kinds);
}

}  // namespace lathe::cuda
