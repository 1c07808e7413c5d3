// Queries and keys of the indexer in one pass (indexer_rows.h). A warp processes a row of k, or
// several neighbouring heads of q; lane i has columns 4 i to 4 i + 3. Products and sums are rounded
// one by one, in the order of the separate kernels (narrow_norm.cuh, rotate_chunk.cuh,
// hadamard.cuh, encode.cuh), so the bits are equal.
#pragma once

#include "kernels/cuda/sm90/rowwise/head_rows.cuh"
#include "kernels/cuda/sm90/rowwise/indexer_rows.h"
#include "kernels/cuda/sm90/rowwise/narrow_norm.cuh"

namespace lathe::cuda {

inline constexpr int kIndexThreads = 128;
inline constexpr int kIndexHeads = 4;  // heads per warp

/// Cosines and sines of the lanes whose columns rotate.
struct IndexRotation {
  HeadRotation<4, kIndexRotary / 4> factors;
  bool rotates;  // this lane's columns

  __device__ __forceinline__ void load(const IndexerRowsParams& p, std::int32_t position,
                                       int lane) {
    constexpr int kLanes = kIndexRotary / 4;
    factors.load(p.table, p.interleaved, position, lane % kLanes);
    rotates = lane / kLanes == p.first / kIndexRotary;
  }
  __device__ __forceinline__ void apply(const IndexerRowsParams& p, float (&x)[4]) const {
    float turned[4];
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) turned[i] = x[i];
    factors.apply(p.interleaved, turned);
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = rotates ? turned[i] : x[i];
  }
};

/// As warp_hadamard() (hadamard.cuh), of the kIndexColumns columns of each head. Heads take turns,
/// as a shuffle takes longer than it keeps others waiting.
__device__ __forceinline__ void index_hadamard(float (&heads)[kIndexHeads][4], int lane) {
  LATHE_UNROLL
  for (auto& x : heads) {
    const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
    x[0] = a + c, x[1] = b + d, x[2] = a - c, x[3] = b - d;
  }
  LATHE_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    LATHE_UNROLL
    for (auto& x : heads) {
      LATHE_UNROLL
      for (float& v : x) {
        const float other = shuffle_xor(v, distance);
        v = (lane & distance) == 0 ? v + other : other - v;
      }
    }
  }
  constexpr float kNorm = 0x1.6a09e6p-4f;  // 1 / sqrt(kIndexColumns)
  LATHE_UNROLL
  for (auto& x : heads) {
    LATHE_UNROLL
    for (float& v : x) v *= kNorm;
  }
}

/// Stores a row's codes and its scale.
__device__ __forceinline__ void store_index(const IndexerRowsParams& p, const IndexPlaces& to,
                                            const Place& place, const float (&x)[4], float amax,
                                            int lane) {
  const TileScale tile = p.raw_scale ? raw_e4m3_scale(amax) : pow2_e4m3_scale(amax);
  store_e4m3_neighbours(place.part(to.codes.start, to.codes.step) + 4 * lane, x, tile.inverse);
  if (lane == 0) store_global(place.part(to.scales.start, to.scales.step), tile.scale);
}

__device__ __forceinline__ void write_index_key(const IndexerRowsParams& p, std::int64_t row,
                                                int lane) {
  float x[4], weight[4], bias[4];
  load_neighbours(p.k + row * p.k_stride + 4 * lane, x);
  load_neighbours(p.norm + 4 * lane, weight);
  load_neighbours(p.bias + 4 * lane, bias);
  const std::int32_t position = shuffle(p.positions[row], 0);
  const Place place = place_of(p.keys.pages, shuffle(p.slots[row], 0));
  if (place.hole || static_cast<std::uint32_t>(position) >= p.table_positions) return;
  IndexRotation rotation;
  rotation.load(p, position, lane);
  float sum = 0, squares = 0;
  LATHE_UNROLL
  for (const float v : x) sum += v;
  const float mean = warp_total(sum) / kIndexColumns;
  LATHE_UNROLL
  for (const float v : x) squares += (v - mean) * (v - mean);
  const float factor = 1 / sqrtf(warp_total(squares) / kIndexColumns + p.eps);
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = (x[i] - mean) * factor * weight[i] + bias[i];
  rotation.apply(p, x);
  store_index(p, p.keys, place, x, largest_finite_of_lanes(x), lane);
}

/// kIndexHeads heads of one row.
__device__ __forceinline__ void quantize_heads(const IndexerRowsParams& p, std::uint32_t group,
                                               int lane) {
  const std::uint32_t row = p.groups_of_row(group);
  if (row >= p.rows) return;
  const auto first =
      static_cast<std::int32_t>((group - row * p.groups_of_row.divisor) * kIndexHeads);
  const std::int32_t position = shuffle(p.positions[row], 0);
  const float* const q = p.q + row * p.q_stride;
  float x[kIndexHeads][4];
  LATHE_UNROLL
  for (int n = 0; n < kIndexHeads; ++n) {
    const std::int32_t head = first + n < p.heads ? first + n : p.heads - 1;
    load_neighbours(q + head * kIndexColumns + 4 * lane, x[n]);
  }
  IndexRotation rotation;
  const bool inside = static_cast<std::uint32_t>(position) < p.table_positions;
  if (inside) rotation.load(p, position, lane);
  LATHE_UNROLL
  for (int n = 0; n < kIndexHeads; ++n) {
    if (inside) rotation.apply(p, x[n]);
  }
  if (p.hadamard) index_hadamard(x, lane);
  float amax[kIndexHeads];
  LATHE_UNROLL
  for (int n = 0; n < kIndexHeads; ++n) amax[n] = largest_finite_of_lanes<1>(x[n]);
  LATHE_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    LATHE_UNROLL
    for (float& v : amax) v = fmaxf(v, shuffle_xor(v, distance));
  }
  const Address page = address_of(p.queries.pages.data) + row * Address(p.queries.pages.stride);
  LATHE_UNROLL
  for (int n = 0; n < kIndexHeads; ++n) {
    if (first + n >= p.heads) return;
    const Place place{page, static_cast<std::uint32_t>(first + n), false};
    store_index(p, p.queries, place, x[n], amax[n], lane);
  }
}

static __global__ void __launch_bounds__(kIndexThreads)
    indexer_rows_kernel(const __grid_constant__ IndexerRowsParams p) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // From one lane, so that the compiler knows that it is the warp's.
  const std::uint32_t warp = blockIdx.x * (kIndexThreads / 32) + shuffle(threadIdx.x / 32, 0);
  const auto keys = p.k != nullptr ? static_cast<std::uint32_t>(p.rows) : 0;
  if (warp < keys) {
    write_index_key(p, warp, lane);
  } else if (p.heads > 0) {
    quantize_heads(p, warp - keys, lane);
  }
}

}  // namespace lathe::cuda
