// Rows into slots, with their rotary part rotated on the way where `kRope`.
#pragma once

#include "kernels/cuda/sm90/codec/block_rows.cuh"
#include "kernels/cuda/sm90/codec/rotate_chunk.cuh"

namespace lathe::cuda {

struct EncodeBlock {
  Place places[kMaxBlockRows];
  std::int32_t positions[kMaxBlockRows];
};

__device__ __forceinline__ void store_scale(const PagesParams& pages, const RunParams& run,
                                            const Place& place, std::uint32_t tile, float scale) {
  std::byte* scales = part_at(pages, place, run.scale_start, run.scale_step);
  if (run.kind == RunKind::e4m3_f32) {
    store(scales + 4 * tile, float_to_bits(scale), run.vector_scale);
  } else {
    scales[tile] = static_cast<std::byte>(float_to_bits(scale) >> 23);
  }
}

__device__ __forceinline__ void store_codes(const PagesParams& pages, const RunParams& run,
                                            const Place& place, std::uint32_t chunk,
                                            const float (&x)[8], float inverse) {
  std::byte* values = part_at(pages, place, run.start, run.step);
  if (run.kind == RunKind::e2m1_ue8m0) {
    store(values + 4 * chunk, to_raw_e2m1(x, inverse), run.vector);
  } else {
    store(values + 8 * chunk, to_raw_e4m3(x, inverse), run.vector);
  }
}

__device__ __forceinline__ Raw<bf16> bf16_chunk(const Raw<bf16>& raw, const float (&x)[8],
                                                bool rotated) {
  return rotated ? to_raw_bf16(x) : raw;  // bf16 that nothing touched is copied bit for bit
}
__device__ __forceinline__ Raw<bf16> bf16_chunk(const Raw<float>&, const float (&x)[8], bool) {
  return to_raw_bf16(x);
}

// Every thread of a warp is here together, as the threads of a tile exchange their maxima.
template <class T, bool kRope, bool kAligned>
__device__ __forceinline__ void encode_chunk(const EncodeParams& p, const RunParams& run,
                                             const Raw<T>& raw, const EncodeBlock& block,
                                             std::byte* first, int row, std::uint32_t chunk,
                                             bool active) {
  float x[8];
  to_floats(raw, x);
  Place place{-1, 0};
  if (active) place = block.places[row];
  if constexpr (kRope) {
    if (!place.hole()) {
      rotate_chunk<T, kAligned>(p.rope, block.positions[row], row_at(first, p.rows, row, 0),
                                kAligned || p.rows.vector, run.first_chunk + chunk, x);
    }
  }
  if (run.kind == RunKind::bf16) {
    if (place.hole()) return;
    store(part_at(p.pages, place, run.start, run.step) + 16 * chunk, bf16_chunk(raw, x, kRope).v,
          run.vector);
    return;
  }
  TileScale tile{run.scale, run.inverse};
  if (run.kind != RunKind::e4m3_tensor) {
    float amax = largest_finite(x);
    const std::uint32_t threads = 1u << run.tile_shift;
    for (int d = 1; d < static_cast<int>(threads); d *= 2) {
      amax = fmaxf(amax, shuffle_xor(amax, d));
    }
    tile = tile_scale(run, amax);
    if (!place.hole() && (chunk & (threads - 1)) == 0) {
      store_scale(p.pages, run, place, run.first_tile + (chunk >> run.tile_shift), tile.scale);
    }
  }
  if (!place.hole()) store_codes(p.pages, run, place, chunk, x, tile.inverse);
}

template <class T, bool kRope, bool kAligned>
__device__ __forceinline__ void encode_run(const EncodeParams& p, const RunParams& run,
                                           const EncodeBlock& block, int rows) {
  constexpr int kCount = kRound<kAligned>;
  std::byte* first = block_row(p.rows, p.block_rows);
  const std::uint32_t total = static_cast<std::uint32_t>(rows) * run.chunks.divisor;
  for (std::uint32_t base = threadIdx.x; base - threadIdx.x < total;
       base += kCodecThreads * kCount) {
    Raw<T> raw[kCount];
    int row[kCount];
    std::uint32_t chunk[kCount];
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      const std::uint32_t i = base + static_cast<std::uint32_t>(u) * kCodecThreads;
      row[u] = static_cast<int>(row_of(run.chunks, i, chunk[u]));
      raw[u] = {};
      if (i >= total) continue;
      raw[u] = load_raw<T>(
          row_at(first, p.rows, row[u], (run.first_chunk + chunk[u]) * kChunk * sizeof(T)),
          kAligned || p.rows.vector);
    }
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      const std::uint32_t i = base + static_cast<std::uint32_t>(u) * kCodecThreads;
      // Uniform over the block: whole rounds past the end have nothing to exchange.
      if (i - threadIdx.x >= total) break;
      encode_chunk<T, kRope, kAligned>(p, run, raw[u], block, first, row[u], chunk[u], i < total);
    }
  }
}

// A run whose one tile is any number of chunks (index keys of unusual widths): a warp takes a row,
// and reads it a second time, from the cache, when it knows the scale.
template <class T, bool kRope, bool kAligned>
__device__ __forceinline__ void encode_wide_tiles(const EncodeParams& p, const RunParams& run,
                                                  const EncodeBlock& block, int rows) {
  std::byte* first = block_row(p.rows, p.block_rows);
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t chunks = run.chunks.divisor;
  for (int row = static_cast<int>(threadIdx.x / 32); row < rows; row += kCodecThreads / 32) {
    const Place place = block.places[row];
    const std::byte* data = row_at(first, p.rows, row, 0);
    const auto values = [&](std::uint32_t chunk, float(&x)[8]) {
      to_floats(load_raw<T>(data + (run.first_chunk + chunk) * kChunk * sizeof(T),
                            kAligned || p.rows.vector),
                x);
      if constexpr (kRope) {
        if (place.hole()) return;
        rotate_chunk<T, kAligned>(p.rope, block.positions[row], data, kAligned || p.rows.vector,
                                  run.first_chunk + chunk, x);
      }
    };
    float amax = 0;
    for (std::uint32_t chunk = lane; chunk < chunks; chunk += 32) {
      float x[8];
      values(chunk, x);
      amax = fmaxf(amax, largest_finite(x));
    }
    for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, shuffle_xor(amax, d));
    if (place.hole()) continue;
    const TileScale tile = tile_scale(run, amax);
    if (lane == 0) store_scale(p.pages, run, place, run.first_tile, tile.scale);
    for (std::uint32_t chunk = lane; chunk < chunks; chunk += 32) {
      float x[8];
      values(chunk, x);
      store_codes(p.pages, run, place, chunk, x, tile.inverse);
    }
  }
}

// Grid: ceil(count / block_rows) blocks of kCodecThreads.
template <class T, bool kRope, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads)
    encode_kernel(const __grid_constant__ EncodeParams p) {
  __shared__ EncodeBlock block;
  const int rows = rows_of_block(p.count, p.block_rows);
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kCodecThreads) {
    const std::int64_t row = std::int64_t{blockIdx.x} * p.block_rows + r;
    const std::int32_t position = kRope ? position_of(p.rope, row) : 0;
    const Place place = place_of(p.pages, position < 0 ? -1 : p.slots[row]);
    block.places[r] = place;
    block.positions[r] = position;
    if (place.hole()) continue;
    std::byte* pad = part_at(p.pages, place, p.pad_start, p.pad_step);
    for (int i = 0; i < p.pad_bytes; ++i) pad[i] = std::byte{0};
  }
  sync_block();
  for (int i = 0; i < p.run_count; ++i) {
    const RunParams run = known_run<kAligned>(p.runs[i]);
    const bool tiles = run.kind != RunKind::bf16 && run.kind != RunKind::e4m3_tensor;
    if (tiles && run.tile_shift == kWideTile) {
      encode_wide_tiles<T, kRope, kAligned>(p, run, block, rows);
    } else {
      encode_run<T, kRope, kAligned>(p, run, block, rows);
    }
  }
}

}  // namespace lathe::cuda
