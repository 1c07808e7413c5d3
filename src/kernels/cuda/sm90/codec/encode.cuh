// Rows into slots, or heads of rows into rows, with their rotary part rotated on the way.
#pragma once

#include <type_traits>

#include "kernels/cuda/sm90/codec/rotate_chunk.cuh"

namespace lathe::cuda {

// Where a lane's row goes.
struct Target {
  Place place;            // a hole: nothing is written
  Address values;         // of the run
  Address scales;         // of the run
  std::int32_t position;  // -1: a hole; what is written all the same is zeros
};

template <bool kRope>
__device__ __forceinline__ Target target_of(const EncodeParams& p, const RunParams& run,
                                            std::int64_t row, std::uint32_t token) {
  // Both loads are on their way before either is looked at.
  const std::int32_t listed = p.slots != nullptr ? p.slots[token] : 0;
  Target out;
  out.position = kRope && p.rope.positions != nullptr ? p.rope.positions[token] : 0;
  bool hole = p.slots != nullptr && static_cast<std::uint32_t>(listed) >= p.slot_count;
  if constexpr (kRope) {
    if (p.rope.half > 0 && out.position >= p.rope.table_positions) hole = true;
    if (hole || out.position < 0) out.position = -1;
    hole = out.position < 0 && !p.zero_holes;
  }
  const std::int32_t slot = kRope && p.to_rows ? static_cast<std::int32_t>(row) : listed;
  out.place = place_of(p.pages, hole ? -1 : slot);
  out.values = out.place.part(run.start, run.step);
  out.scales = out.place.part(run.scale_start, run.scale_step);
  return out;
}

template <RunKind kKind>
__device__ __forceinline__ void store_scale(const RunParams& run, Address scales,
                                            std::uint32_t tile, float scale) {
  if constexpr (kKind == RunKind::e4m3_f32) {
    store(scales + 4 * tile, float_to_bits(scale), run.vector_scale);
  } else {
    store_global(scales + tile, static_cast<unsigned char>(float_to_bits(scale) >> 23));
  }
}

template <class T, bool kRotated>
__device__ __forceinline__ Raw<bf16> bf16_chunk(const Raw<T>& raw, const float (&x)[8]) {
  if constexpr (!kRotated && std::is_same_v<T, bf16>) return raw;  // copied bit for bit
  return to_raw_bf16(x);
}

// The chunks of a batch in a lane, and the lane's row.
template <class T, int kCount>
struct EncodeChunks {
  Items<kCount> item;
  Raw<T> raw[kCount];
  Target target;
  std::uint32_t holes;  // bits of rows

  // Where the run of chunk u's row begins. All lanes ask.
  __device__ __forceinline__ Address values(int u) const {
    return shuffle(target.values, item.row[u]);
  }
  __device__ __forceinline__ Address scales(int u) const {
    return shuffle(target.scales, item.row[u]);
  }
};

// One chunk of a run without tiles.
template <class T, RunKind kKind, bool kRotated>
__device__ __forceinline__ void store_plain(const RunParams& run, Address values,
                                            std::uint32_t chunk, const Raw<T>& raw,
                                            const float (&x)[8]) {
  if constexpr (kKind == RunKind::bf16) {
    store(values + 16 * Address{chunk}, bf16_chunk<T, kRotated>(raw, x).v, run.vector);
  } else if constexpr (kKind == RunKind::f32) {
    store_raw(values + 32 * Address{chunk}, to_raw_f32(x), run.vector);
  } else {
    store(values + 8 * Address{chunk}, to_raw_e4m3(x, run.inverse), run.vector);
  }
}

// Threads that share a tile are 2^this.
template <RunKind kKind>
__device__ __forceinline__ int tile_shift(const RunParams& run) {
  return kKind == RunKind::e2m1_ue8m0 ? kFp4TileShift : run.tile_shift;
}

template <RunKind kKind>
__device__ __forceinline__ void store_tile_scale(const RunParams& run, Address scales,
                                                 std::uint32_t chunk, float scale) {
  if ((chunk & ((1u << tile_shift<kKind>(run)) - 1)) != 0) return;
  store_scale<kKind>(run, scales, run.first_tile + (chunk >> tile_shift<kKind>(run)), scale);
}

template <RunKind kKind>
__device__ __forceinline__ void store_codes(const RunParams& run, Address values,
                                            std::uint32_t chunk, const float (&x)[8],
                                            float inverse) {
  if constexpr (kKind == RunKind::e2m1_ue8m0) {
    store(values + 4 * Address{chunk}, to_raw_e2m1(x, inverse), run.vector);
  } else {
    store(values + 8 * Address{chunk}, to_raw_e4m3(x, inverse), run.vector);
  }
}

// One chunk of a run with tiles, from f32 values. The threads of a tile exchange their maxima.
template <RunKind kKind>
__device__ __forceinline__ void encode_tile_chunk(const RunParams& run, Address values,
                                                  Address scales, std::uint32_t chunk,
                                                  const float (&x)[8], bool has) {
  float amax = largest_finite(x);
  for (int d = 1; d < 1 << tile_shift<kKind>(run); d *= 2) amax = fmaxf(amax, shuffle_xor(amax, d));
  const TileScale tile = tile_scale<kKind>(run, amax);
  if (!has) return;
  store_tile_scale<kKind>(run, scales, chunk, tile.scale);
  store_codes<kKind>(run, values, chunk, x, tile.inverse);
}

// All chunks of a run with tiles, from bf16 as they lie in memory: maxima are those of bf16 bits,
// two chunks in a word. False, with nothing written, where one is no finite number.
template <RunKind kKind, int kCount>
__device__ __forceinline__ bool encode_tiles(const RunParams& run,
                                             const EncodeChunks<bf16, kCount>& in) {
  constexpr int kPairs = (kCount + 1) / 2;
  std::uint32_t amax[kPairs];
  std::uint32_t special = 0;
  LATHE_UNROLL
  for (int i = 0; i < kPairs; ++i) {
    amax[i] = largest_magnitude(in.raw[2 * i]);
    if (2 * i + 1 < kCount) amax[i] |= largest_magnitude(in.raw[2 * i + 1]) << 16;
    special |= (amax[i] + 0x00800080u) & 0x80008000u;
  }
  if (warp_any(special != 0)) return false;
  for (int d = 1; d < 1 << tile_shift<kKind>(run); d *= 2) {
    LATHE_UNROLL
    for (int i = 0; i < kPairs; ++i) amax[i] = max_u16x2(amax[i], shuffle_xor(amax[i], d));
  }
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const std::uint32_t bits = u % 2 == 0 ? amax[u / 2] << 16 : amax[u / 2] & 0xffff0000u;
    const TileScale tile = tile_scale<kKind>(run, bits_to_float(bits));
    const std::uint32_t chunk = in.item.chunk[u];
    const Address values = in.values(u);
    const Address scales = in.scales(u);
    if (!in.item.has(u, in.holes)) continue;
    store_tile_scale<kKind>(run, scales, chunk, tile.scale);
    if constexpr (kKind == RunKind::e2m1_ue8m0) {
      store(values + 4 * Address{chunk}, to_raw_e2m1_numbers(in.raw[u], tile.inverse), run.vector);
    } else {
      float x[8];
      to_floats(in.raw[u], x);
      store(values + 8 * Address{chunk}, to_raw_e4m3_numbers(x, tile.inverse), run.vector);
    }
  }
  return true;
}

// Every thread of the warp is here.
template <class T, RunKind kKind, int kRounds, bool kRope, bool kRotate, bool kAligned>
__device__ __forceinline__ void encode_batch(const EncodeParams& p, const RunParams& run,
                                             std::int64_t first_row, const Batch& batch) {
  const RopeParams& rope = p.rope;
  constexpr int kCount = kRounds;
  constexpr bool kTiles =
      kKind != RunKind::bf16 && kKind != RunKind::f32 && kKind != RunKind::e4m3_tensor;
  const bool vector = kAligned || p.rows.vector;
  const std::uint32_t lane_row = batch.first_row + lane_of_warp();
  const std::int64_t row = first_row + lane_row;

  // The rows do not depend on slots, so they are on their way before any is known.
  EncodeChunks<T, kCount> in{Items<kCount>(run.cut.chunks, batch), {}, {{}, 0, 0, -1}, 0};
  const std::uint32_t token = p.heads(static_cast<std::uint32_t>(row));
  const std::uint32_t head = static_cast<std::uint32_t>(row) - token * p.heads.divisor;
  const Address source_row = row_address(p.rows, token, run.first_chunk * kChunk * sizeof(T)) +
                             head * Address{p.head_bytes};
  Turn<T> turn[kRotate ? kCount : 1];
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address at =
        shuffle(source_row, in.item.row[u]) + Address{in.item.chunk[u]} * (kChunk * sizeof(T));
    in.raw[u] = load_raw<T>(at, vector);
    if constexpr (kRotate) {
      const int c = rotary_chunk(rope, run.first_chunk + in.item.chunk[u]);
      load_partner(rope, c, at, vector, turn[u]);
    }
  }
  if constexpr (kRotate) sync_warp();  // in place: all is read before the first is written

  if (lane_row < batch.rows) {
    in.target = target_of<kRope>(p, run, row, token);
    // The lane in whose batch a row begins clears the padding.
    const bool begins = lane_row * run.cut.chunks.divisor >= batch.begin &&
                        lane_row * run.cut.chunks.divisor < batch.end;
    if (run.first_chunk == 0 && begins && !in.target.place.hole) {
      const Address pad = in.target.place.part(p.pad_start, p.pad_step);
      for (int i = 0; i < p.pad_bytes; ++i) {
        store_global(pad + static_cast<Address>(i), static_cast<unsigned char>(0));
      }
    }
  }
  in.holes = warp_ballot(in.target.place.hole);
  if constexpr (kRope) {
    // Holes that are written all the same: zeros.
    const std::uint32_t zeros = warp_ballot(in.target.position < 0) & ~in.holes;
    if (zeros != 0) {
      LATHE_UNROLL
      for (int u = 0; u < kCount; ++u) {
        if ((zeros >> in.item.row[u] & 1u) != 0) in.raw[u] = {};
      }
    }
  }
  if constexpr (kTiles && !kRotate && std::is_same_v<T, bf16>) {
    if (encode_tiles<kKind>(run, in)) return;
  }
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    float x[8];
    to_floats(in.raw[u], x);
    const std::uint32_t chunk = in.item.chunk[u];
    if constexpr (kRotate) {
      const std::int32_t position = shuffle(in.target.position, in.item.row[u]);
      const int c = rotary_chunk(rope, run.first_chunk + chunk);
      if (position >= 0 && c >= 0) {
        load_turn<T, kAligned>(rope, position, c, turn[u]);
        rotate(rope, turn[u], c, x);
      }
    }
    const bool has = in.item.has(u, in.holes);
    const Address values = in.values(u);
    if constexpr (kTiles) {
      encode_tile_chunk<kKind>(run, values, in.scales(u), chunk, x, has);
    } else {
      if (has) store_plain<T, kKind, kRotate>(run, values, chunk, in.raw[u], x);
    }
  }
}

// A run whose one tile is any number of chunks (index keys of unusual widths): a batch is a row,
// which is read a second time, from the cache, when its scale is known.
template <class T, RunKind kKind, bool kRope, bool kAligned>
__device__ __forceinline__ void encode_wide_tile(const EncodeParams& p, const RunParams& run,
                                                 std::int64_t first_row, const Batch& batch) {
  const RopeParams& rope = p.rope;
  const bool vector = kAligned || p.rows.vector;
  const std::int64_t row = first_row + batch.first_row;
  const Address source = row_address(p.rows, row, run.first_chunk * kChunk * sizeof(T));
  const Target target =
      target_of<kRope>(p, run, row, static_cast<std::uint32_t>(row));  // rows have one head
  const std::uint32_t chunks = run.cut.chunks.divisor;
  const auto values = [&](std::uint32_t chunk, float(&x)[8]) {
    const Address at = source + Address{chunk} * (kChunk * sizeof(T));
    to_floats(load_raw<T>(at, vector), x);
    const int c = kRope ? rotary_chunk(rope, run.first_chunk + chunk) : -1;
    if (c < 0 || target.position < 0) return;
    Turn<T> turn;
    load_partner(rope, c, at, vector, turn);
    load_turn<T, kAligned>(rope, target.position, c, turn);
    rotate(rope, turn, c, x);
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
  if (lane_of_warp() == 0) store_scale<kKind>(run, target.scales, run.first_tile, tile.scale);
  for (std::uint32_t chunk = lane_of_warp(); chunk < chunks; chunk += 32) {
    float x[8];
    values(chunk, x);
    store_codes<kKind>(run, target.values, chunk, x, tile.inverse);
  }
}

template <class T, RunKind kKind, RunKind kFirst, bool kRope, bool kAligned>
__device__ __forceinline__ void encode_run(const EncodeParams& p, const RunParams& run,
                                           std::int64_t first_row, WarpBatches& batches) {
  if (kKind == RunKind::e4m3_f32 && run.tile_shift == kWideTile) {
    return batches.run(run.cut, [&](const Batch& batch) {
      encode_wide_tile<T, kKind, kRope, kAligned>(p, run, first_row, batch);
    });
  }
  if (kRope && run.rotates) {
    return batches.run(run.cut, [&](const Batch& batch) {
      encode_batch<T, kKind, encode_rounds(kAligned, true, kFirst), kRope, kRope, kAligned>(
          p, run, first_row, batch);
    });
  }
  batches.run(run.cut, [&](const Batch& batch) {
    encode_batch<T, kKind, encode_rounds(kAligned, false, kFirst), kRope, false, kAligned>(
        p, run, first_row, batch);
  });
}

// Blocks on a multiprocessor, as a bound on registers. Tiles with f32 scales may be wide ones.
template <class T, RunKind kFirst, bool kRope, bool kAligned>
inline constexpr int kEncodeBlocks = sizeof(T) == 4                ? 1
                                     : !kRope                      ? 4
                                     : !kAligned                   ? 2
                                     : kFirst == RunKind::e4m3_f32 ? 3
                                                                   : 4;

// Grid: ceil(count / block_rows) blocks of p.threads. T: what rows hold, bf16 or float; runs are
// stored as kFirst and, where there are two, kSecond.
template <class T, RunKind kFirst, RunKind kSecond, bool kRope, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads, kEncodeBlocks<T, kFirst, kRope, kAligned>)
    encode_kernel(const __grid_constant__ EncodeParams p) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  WarpBatches batches(rows_of_block(p.count, first_row, p.block_rows));
  encode_run<T, kFirst, kFirst, kRope, kAligned>(p, known_run<kFirst, kAligned>(p.runs[0]),
                                                 first_row, batches);
  if (p.run_count == 1) return;
  encode_run<T, kSecond, kFirst, kRope, kAligned>(p, known_run<kSecond, kAligned>(p.runs[1]),
                                                  first_row, batches);
}

}  // namespace lathe::cuda
