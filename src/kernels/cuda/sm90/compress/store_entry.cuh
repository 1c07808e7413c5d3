// Encodes an entry in shared memory and writes it to its slot, with the bits of encode.cuh.
#pragma once

#include "kernels/cuda/sm90/compress/compress.h"
#include "kernels/cuda/sm90/rowwise/head_rows.cuh"

namespace lathe::cuda {

/// Threads that take part: each has four columns.
inline constexpr int kEntryThreads = kCompressMostDim / 4;

/// An index key: all columns have one scale. One warp calls it.
__device__ inline void store_index_key(const EntryPool& pool, const Place& place,
                                       const float* entry /* [dim] */, std::int32_t dim) {
  const RunParams& run = pool.runs[0];
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  float amax = 0;
  for (std::int32_t col = 4 * lane; col < dim; col += 128) {
    float v[4];
    load_neighbours(entry + col, v);
    amax = fmaxf(amax, largest_finite_of_lanes<1>(v));
  }
  for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, shuffle_xor(amax, d));
  const TileScale tile = tile_scale<RunKind::e4m3_f32>(run, amax);
  const Address to = place.part(run.start, run.step);
  for (std::int32_t col = 4 * lane; col < dim; col += 128) {
    float v[4];
    load_neighbours(entry + col, v);
    store_e4m3_neighbours(to + static_cast<Address>(col), v, tile.inverse);
  }
  if (lane == 0) store_global(place.part(run.scale_start, run.scale_step), tile.scale);
}

/// Other entries: bf16, or tiles of kEntryTile codes and then bf16.
__device__ inline void store_entry_parts(const EntryPool& pool, const Place& place,
                                         const float* entry /* [dim] */, std::int32_t dim) {
  const auto col = static_cast<std::int32_t>(4 * threadIdx.x);
  const auto second = static_cast<std::int32_t>(pool.runs[1].first_chunk * kChunk);
  const RunParams& run = pool.runs[col < second ? 0 : 1];
  const auto own = static_cast<Address>(col < second ? col : col - second);
  float v[4] = {};
  if (col < dim) load_neighbours(entry + col, v);
  static_assert(kEntryTile == 4 * 16);
  const TileScale tile = pow2_e4m3_scale(largest_finite_of_lanes<16>(v));
  if (col >= dim) return;
  const Address to = place.part(run.start, run.step);
  if (run.kind == RunKind::bf16) return store_bf16_neighbours(to + 2 * own, v);
  store_e4m3_neighbours(to + own, v, tile.inverse);
  if (col % kEntryTile != 0) return;
  const Address scales = place.part(run.scale_start, run.scale_step);
  store_global(scales + own / kEntryTile,
               static_cast<unsigned char>(float_to_bits(tile.scale) >> 23));
  if (col > 0) return;
  const Address pad = place.part(pool.pad_start, pool.pad_step);
  for (std::int32_t i = 0; i < pool.pad_bytes; ++i) {
    store_global(pad + static_cast<Address>(i), static_cast<unsigned char>(0));
  }
}

/// The block calls it. A slot outside the pool is a hole.
__device__ inline void store_entry(const EntryPool& pool, std::int32_t slot,
                                   const float* entry /* [dim], aligned to 16 bytes */,
                                   std::int32_t dim) {
  const Place place = place_of(pool.pages, slot);
  if (place.hole) return;
  if (pool.runs[0].kind == RunKind::e4m3_f32) {
    if (threadIdx.x < 32) store_index_key(pool, place, entry, dim);
  } else if (threadIdx.x < kEntryThreads) {
    store_entry_parts(pool, place, entry, dim);
  }
}

}  // namespace lathe::cuda
