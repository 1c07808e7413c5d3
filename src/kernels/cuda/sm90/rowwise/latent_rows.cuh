// Queries and keys of latent attention in one pass (latent_rows.h). A warp processes a row of k, or
// several neighbouring heads of q. Products and sums are rounded one by one, in the order of the
// separate kernels (norm.cuh, rotate_chunk.cuh, encode.cuh), so the bits are equal.
#pragma once

#include "kernels/cuda/sm90/rowwise/head_rows.cuh"
#include "kernels/cuda/sm90/rowwise/latent_rows.h"

namespace lathe::cuda {

inline constexpr int kLatentThreads = 128;
inline constexpr int kLatentWarpHeads = 4;  // neighbouring heads of a warp

/// A latent: lane i has columns 4 i to 4 i + 3 of each quarter, a tile of 128 columns.
struct LatentOfWarp {
  static constexpr int kTiles = kLatentColumns / 128;
  float v[kTiles][4];

  __device__ __forceinline__ void load(const float* from, int lane) {
    LATHE_UNROLL
    for (int u = 0; u < kTiles; ++u) load_neighbours(from + 128 * u + 4 * lane, v[u]);
  }
  // Adds in the order of norm_kernel's 128 threads: its thread 4 i + j has what lane i here has in
  // v[...][j].
  __device__ __forceinline__ float sum_of_squares() const {
    float sums[4] = {};
    LATHE_UNROLL
    for (int u = 0; u < kTiles; ++u) {
      LATHE_UNROLL
      for (int j = 0; j < 4; ++j) sums[j] += v[u][j] * v[u][j];
    }
    for (int d = 4; d > 0; d /= 2) {
      LATHE_UNROLL
      for (float& sum : sums) sum += shuffle_xor(sum, d);
    }
    const float of_warp = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    float all = 0;
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) all += shuffle(of_warp, 8 * w);
    return all;
  }
  __device__ __forceinline__ void scale(float factor, const float* weight, int lane) {
    LATHE_UNROLL
    for (int u = 0; u < kTiles; ++u) {
      float w[4];
      load_neighbours(weight + 128 * u + 4 * lane, w);
      LATHE_UNROLL
      for (int j = 0; j < 4; ++j) v[u][j] = v[u][j] * factor * w[j];
    }
  }
};

template <RunKind kKind>
__device__ __forceinline__ void store_latent(const LatentRowsParams& p, const Place& place,
                                             const LatentOfWarp& x, int lane, ValueLosses& losses) {
  const Address to = place.part(p.latent.start, p.latent.step);
  float scale_of_lane = 0;
  LATHE_UNROLL
  for (int u = 0; u < LatentOfWarp::kTiles; ++u) {
    const int col = 128 * u + 4 * lane;
    if constexpr (kKind == RunKind::bf16) {
      store_bf16_neighbours(to + 2 * col, x.v[u]);
    } else if constexpr (kKind == RunKind::e4m3_tensor) {
      if (p.counts != nullptr) losses.see(x.v[u], p.latent.inverse);
      store_e4m3_neighbours(to + col, x.v[u], p.latent.inverse);
    } else {
      const float amax = largest_finite_of_lanes(x.v[u]);
      const TileScale tile = p.raw_scale ? raw_e4m3_scale(amax) : pow2_e4m3_scale(amax);
      store_e4m3_neighbours(to + col, x.v[u], tile.inverse);
      if (lane == u) scale_of_lane = tile.scale;
    }
  }
  if (kKind == RunKind::e4m3_f32 && lane < LatentOfWarp::kTiles) {
    reinterpret_cast<float*>(place.part(p.scale_start, p.scale_step))[lane] = scale_of_lane;
  }
}

template <RunKind kKind>
__device__ __forceinline__ void write_key(const LatentRowsParams& p, std::int64_t row, int lane) {
  LatentOfWarp x;
  float rope[2];
  const float* from = p.k + row * p.k_stride;
  x.load(from, lane);
  load_neighbours(from + kLatentColumns + 2 * lane, rope);
  const std::int32_t position = p.positions[row];
  const Place place = place_of(p.pages, p.slots[row]);
  x.scale(1 / sqrtf(x.sum_of_squares() / kLatentColumns + p.eps), p.norm, lane);
  if (place.hole || static_cast<std::uint32_t>(position) >= p.table_positions) return;
  HeadRotation<2> rotation;
  rotation.load(p.table, p.interleaved, position, lane);
  rotation.apply(p.interleaved, rope);
  ValueLosses losses;
  store_latent<kKind>(p, place, x, lane, losses);
  const Address to = place.part(p.rope.start, p.rope.step);
  if constexpr (kKind == RunKind::e4m3_tensor) {
    if (p.counts != nullptr) losses.see(rope, p.rope.inverse);
    store_e4m3_neighbours(to + 2 * lane, rope, p.rope.inverse);
    if (p.counts != nullptr) losses.add_to(p.counts);
  } else {
    store_bf16_neighbours(to + 4 * lane, rope);
  }
}

/// kLatentWarpHeads heads of one row.
__device__ __forceinline__ void round_heads(const LatentRowsParams& p, std::uint32_t group,
                                            int lane) {
  const std::uint32_t row = p.groups_of_row(group);
  if (row >= p.rows) return;
  const auto first =
      static_cast<std::int32_t>((group - row * p.groups_of_row.divisor) * kLatentWarpHeads);
  const std::int32_t position = p.positions[row], slot = p.slots[row];
  const float* const q = p.q + row * p.q_stride;
  float nope[kLatentWarpHeads][2][4], rope[kLatentWarpHeads][2];
  LATHE_UNROLL
  for (int n = 0; n < kLatentWarpHeads; ++n) {
    const std::int32_t head = first + n < p.heads ? first + n : p.heads - 1;
    const float* from = q + head * (p.qk_nope + kRotaryColumns);
    LATHE_UNROLL
    for (int u = 0; u < 2; ++u) {
      const int col = 128 * u + 4 * lane;
      if (col < p.qk_nope) load_neighbours(from + col, nope[n][u]);
    }
    load_neighbours(from + p.qk_nope + 2 * lane, rope[n]);
  }
  const bool hole = static_cast<std::uint32_t>(position) >= p.table_positions ||
                    static_cast<std::uint32_t>(slot) >= p.pages.slots;
  HeadRotation<2> rotation;
  if (!hole) rotation.load(p.table, p.interleaved, position, lane);
  LATHE_UNROLL
  for (int n = 0; n < kLatentWarpHeads; ++n) {
    if (first + n >= p.heads) return;
    if (hole) {
      LATHE_UNROLL
      for (int i = 0; i < 8; ++i) nope[n][i / 4][i % 4] = 0;
      rope[n][0] = rope[n][1] = 0;
    } else {
      rotation.apply(p.interleaved, rope[n]);
    }
    const Address to =
        address_of(p.nope_out + row * p.nope_stride + std::int64_t{first + n} * p.nope_head);
    LATHE_UNROLL
    for (int u = 0; u < 2; ++u) {
      const int col = 128 * u + 4 * lane;
      if (col < p.qk_nope) store_bf16_neighbours(to + 2 * col, nope[n][u]);
    }
    store_bf16_neighbours(address_of(p.rope_out + row * p.rope_stride +
                                     std::int64_t{first + n} * p.rope_head + 2 * lane),
                          rope[n]);
  }
}

template <RunKind kKind>
static __global__ void __launch_bounds__(kLatentThreads)
    latent_rows_kernel(const __grid_constant__ LatentRowsParams p) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // From one lane, so that the compiler knows that it is the warp's.
  const std::uint32_t warp = blockIdx.x * (kLatentThreads / 32) + shuffle(threadIdx.x / 32, 0);
  const auto rows = static_cast<std::uint32_t>(p.rows);
  if (warp < rows) {
    write_key<kKind>(p, warp, lane);
  } else {
    round_heads(p, warp - rows, lane);
  }
}

}  // namespace lathe::cuda
