// Queries, keys and values in one pass (qkv.h). A warp processes neighbouring heads of a row's
// queries, keys and values. Products and sums are rounded one by one, in the order of the separate
// kernels (narrow_norm.cuh, rotate_chunk.cuh, encode.cuh); with 128 columns the bits are equal.
#pragma once

#include "kernels/cuda/sm90/rowwise/head_rows.cuh"
#include "kernels/cuda/sm90/rowwise/narrow_norm.cuh"
#include "kernels/cuda/sm90/rowwise/qkv.h"

namespace lathe::cuda {

inline constexpr int kQkvThreads = 128;
inline constexpr int kQkvHeads = 4;  // heads per warp

template <int kCols, bool kCodes>
static __global__ void __launch_bounds__(kQkvThreads)
    qkv_kernel(const __grid_constant__ QkvParams p) {
  constexpr int kCount = kCols / 32;
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t warp = blockIdx.x * (kQkvThreads / 32) + threadIdx.x / 32;
  const std::uint32_t first = warp * kQkvHeads;
  const auto count = static_cast<std::uint32_t>(p.rows) * p.heads_of_row.divisor;
  float x[kQkvHeads][kCount], q_weight[kCount], k_weight[kCount];
  std::uint32_t row[kQkvHeads];
  std::int32_t head[kQkvHeads], positions[kQkvHeads], slots[kQkvHeads];
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    const std::uint32_t i = first + n < count ? first + n : count - 1;
    row[n] = p.heads_of_row(i);
    head[n] = static_cast<std::int32_t>(i - row[n] * p.heads_of_row.divisor);
    const bool query = head[n] < p.heads;
    const float* from = query ? p.q + row[n] * p.q_stride : p.kv + row[n] * p.kv_stride;
    load_neighbours(from + (query ? head[n] : head[n] - p.heads) * kCols + lane * kCount, x[n]);
    positions[n] = p.positions[row[n]];
    slots[n] = p.slots[row[n]];
  }
  if (p.q_norm != nullptr) load_neighbours(p.q_norm + lane * kCount, q_weight);
  if (p.k_norm != nullptr) load_neighbours(p.k_norm + lane * kCount, k_weight);
  HeadRotation<kCount> rotation;
  std::int32_t rotation_of = -1;
  ValueLosses losses;
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    if (first + n >= count) break;
    const std::int32_t stored = head[n] - p.heads;  // negative: a query
    const bool query = stored < 0, value = stored >= p.kv_heads;
    if (p.norms && !value) {
      float squares = 0;
      LATHE_UNROLL
      for (const float v : x[n]) squares += v * v;
      const float factor = 1 / sqrtf(warp_total(squares) / kCols + p.eps);
      const bool weighs = (query ? p.q_norm : p.k_norm) != nullptr;
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        x[n][i] *= factor;
        if (weighs) x[n][i] *= query ? q_weight[i] : k_weight[i];
      }
    }
    // Padding rows have no position and are not rotated.
    if (!value && static_cast<std::uint32_t>(positions[n]) < p.table_positions) {
      if (rotation_of != positions[n]) rotation.load(p.table, p.interleaved, positions[n], lane);
      rotation_of = positions[n];
      rotation.apply(p.interleaved, lane, x[n]);
    }
    if (query) {
      store_bf16_neighbours(p.q_out + row[n] * p.q_out_stride + head[n] * kCols + lane * kCount,
                            x[n]);
      continue;
    }
    const Place place = place_of(p.pages, slots[n]);
    if (place.hole) continue;
    const StoredPart& to = value ? p.values : p.keys;
    const std::uint32_t column =
        static_cast<std::uint32_t>(value ? stored - p.kv_heads : stored) * kCols + lane * kCount;
    auto* at = reinterpret_cast<void*>(place.part(to.start, to.step));
    if constexpr (kCodes) {
      if (p.counts != nullptr) losses.see(x[n], to.inverse);
      store_e4m3_neighbours(static_cast<std::uint8_t*>(at) + column, x[n], to.inverse);
    } else {
      store_bf16_neighbours(static_cast<std::uint16_t*>(at) + column, x[n]);
    }
  }
  if constexpr (kCodes) {
    if (p.counts != nullptr) losses.add_to(p.counts);
  }
}

}  // namespace lathe::cuda
