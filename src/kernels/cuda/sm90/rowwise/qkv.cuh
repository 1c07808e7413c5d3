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

/// 1 / sqrt(mean square + eps) of the heads that a warp's lanes have in x. Whatever a head past the
/// last one holds, it changes its own factor only.
template <int kCount>
__device__ __forceinline__ void norm_factors(const float (&x)[kQkvHeads][kCount], float eps,
                                             int lane, float (&factors)[kQkvHeads]) {
  float squares[kQkvHeads];
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    squares[n] = 0;
    LATHE_UNROLL
    for (const float v : x[n]) squares[n] += v * v;
  }
  // Adds as warp_total() does, but each lane only the sums of fewer and fewer heads, at last of
  // one: head n's are in lanes kLanes n and on.
  constexpr int kLanes = 32 / kQkvHeads;
  int distance = 16;
  LATHE_UNROLL
  for (int left = kQkvHeads / 2; left > 0; left /= 2, distance /= 2) {
    const bool upper = (lane & distance) != 0;
    LATHE_UNROLL
    for (int i = 0; i < left; ++i) {
      const float mine = upper ? squares[left + i] : squares[i];
      squares[i] = mine + shuffle_xor(upper ? squares[i] : squares[left + i], distance);
    }
  }
  for (; distance > 0; distance /= 2) squares[0] += shuffle_xor(squares[0], distance);
  const float factor = 1 / sqrtf(squares[0] / (32 * kCount) + eps);
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) factors[n] = shuffle(factor, kLanes * n);
}

/// A warp processes kQkvHeads neighbouring heads of one row.
template <int kCols, bool kCodes>
static __global__ void __launch_bounds__(kQkvThreads)
    qkv_kernel(const __grid_constant__ QkvParams p) {
  constexpr int kCount = kCols / 32;
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // From one lane, so that the compiler knows that they are the warp's: this number, the row's
  // position and its slot.
  const std::uint32_t warp = blockIdx.x * (kQkvThreads / 32) + shuffle(threadIdx.x / 32, 0);
  const std::uint32_t row = p.groups_of_row(warp);
  if (row >= p.rows) return;
  const auto first = static_cast<std::int32_t>((warp - row * p.groups_of_row.divisor) * kQkvHeads);
  const std::int32_t key_end = p.heads + p.kv_heads, end = key_end + p.value_heads;
  const std::int32_t position = shuffle(p.positions[row], 0), slot = shuffle(p.slots[row], 0);
  const std::int64_t q = row * p.q_stride + first * kCols + lane * kCount;
  const std::int64_t kv = row * p.kv_stride + (first - p.heads) * kCols + lane * kCount;
  float x[kQkvHeads][kCount], q_weight[kCount], k_weight[kCount];
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    const float* const from = first + n < p.heads ? p.q + q : p.kv + kv;
    if (first + n < end) load_neighbours(from + n * kCols, x[n]);
  }
  if (p.q_norm != nullptr) load_neighbours(p.q_norm + lane * kCount, q_weight);
  if (p.k_norm != nullptr) load_neighbours(p.k_norm + lane * kCount, k_weight);
  // Padding rows have no position and are not rotated.
  const bool rotates = first < key_end && static_cast<std::uint32_t>(position) < p.table_positions;
  HeadRotation<kCount> rotation;
  if (rotates) rotation.load(p.table, p.interleaved, position, lane);
  const Place place = place_of(p.pages, slot);
  float factors[kQkvHeads];
  if (p.norms && first < key_end) norm_factors(x, p.eps, lane, factors);
  // Of the group's first head, whether it is one or not.
  const auto element = [&](std::int32_t head) {
    return static_cast<Address>(std::int64_t{head} * kCols + lane * kCount);
  };
  constexpr Address kBytes = kCodes ? 1 : 2;
  const Address q_to = address_of(p.q_out + row * p.q_out_stride) + 2 * element(first);
  const Address key_to = place.part(p.keys.start, p.keys.step) + kBytes * element(first - p.heads);
  const Address value_to =
      place.part(p.values.start, p.values.step) + kBytes * element(first - key_end);
  ValueLosses losses;
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    const std::int32_t head = first + n;
    if (head >= end) break;
    const bool query = head < p.heads, value = head >= key_end;
    if (p.norms && !value) {
      const bool weighs = (query ? p.q_norm : p.k_norm) != nullptr;
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        x[n][i] *= factors[n];
        if (weighs) x[n][i] *= query ? q_weight[i] : k_weight[i];
      }
    }
    if (rotates && !value) rotation.apply(p.interleaved, x[n]);
    if (!query && place.hole) continue;
    if constexpr (kCodes) {
      if (!query) {
        const float inverse = value ? p.values.inverse : p.keys.inverse;
        if (p.counts != nullptr) losses.see(x[n], inverse);
        store_e4m3_neighbours((value ? value_to : key_to) + n * kCols, x[n], inverse);
        continue;
      }
    }
    store_bf16_neighbours((query ? q_to : value ? value_to : key_to) + 2 * n * kCols, x[n]);
  }
  if constexpr (kCodes) {
    if (p.counts != nullptr) losses.add_to(p.counts);
  }
}

}  // namespace lathe::cuda
