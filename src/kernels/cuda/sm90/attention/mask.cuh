// Masks scores by one bit per key. A thread's fragment of a tile of 64 M rows x 64 keys is as in
// wgmma.cuh.
#pragma once

#include "kernels/cuda/sm90/attention/row_max.cuh"

namespace lathe::cuda {

/// Marks a branch as unlikely. The compiler moves its code out of line, so that loops fit the
/// instruction cache.
__device__ inline bool seldom(bool x) { return __builtin_expect(x, 0); }

/// Masks keys that have a 0 bit.
__device__ inline void mask_keys(float (&d)[32], std::uint64_t seen, int lane) {
  if (!seldom(seen != ~std::uint64_t{0})) return;
  const auto bits = seen >> 2 * (lane & 3);
  LATHE_UNROLL
  for (int j = 0; j < 8; ++j) {
    const auto two = static_cast<std::uint32_t>(bits >> 8 * j);
    if (!(two & 1)) d[4 * j] = d[4 * j + 2] = kNoKey;
    if (!(two & 2)) d[4 * j + 1] = d[4 * j + 3] = kNoKey;
  }
}

// With A and B swapped a thread holds keys `key` and `key` + 8 of M rows 8 j + 2 (lane % 4) + i.

/// Masks keys that have a 0 bit.
template <int kCount>
__device__ inline void mask_keys_swapped(float (&d)[kCount], std::uint64_t seen, int key) {
  if (!seldom(seen != ~std::uint64_t{0})) return;
  const auto bits = static_cast<std::uint32_t>(seen >> key);
  LATHE_UNROLL
  for (int j = 0; j < kCount / 4; ++j) {
    if (!(bits & 1)) d[4 * j] = d[4 * j + 1] = kNoKey;
    if (!(bits & 256)) d[4 * j + 2] = d[4 * j + 3] = kNoKey;
  }
}
}  // namespace lathe::cuda
