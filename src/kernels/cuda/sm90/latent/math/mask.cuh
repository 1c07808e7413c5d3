// Masks scores of keys that an M row does not see. A thread's fragment of a tile of 64 M rows x 64
// keys is as in wgmma.cuh.
#pragma once

#include "kernels/cuda/sm90/attention/mask.cuh"
#include "kernels/cuda/sm90/attention/nonfinite.cuh"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Masks the score, if `masked`; wild: set if it was not finite.
__device__ inline void mask_score(float& d, bool masked, bool& wild) {
  if (!masked) return;
  wild |= is_wild(d);
  d = kNoKey;
}

/// How many keys of an item a thread's two M rows see.
struct RowLimits {
  int first = INT32_MAX;   // keys that the block's first row sees
  std::uint32_t rows = 0;  // each M row's query row, counted from the block's first: 16 bits each

  __device__ static RowLimits of(const LatentParams& p, int first_limit, int first_m_row,
                                 int m_row) {
    const auto row = [&](int m) { return p.by_heads(static_cast<std::uint32_t>(m)); };
    const std::uint32_t first = row(first_m_row);
    return {first_limit + static_cast<int>(first), (row(m_row) - first) | (row(m_row + 8) - first)
                                                                              << 16};
  }
};

/// Masks the keys of a tile that a thread's two M rows do not see. first: limits.first, counted
/// from the tile's first key, less than a tile. Returns whether a masked score was not finite.
__device__ inline bool mask_after(float (&d)[32], int first, std::uint32_t rows, int lane) {
  const int limit0 = first + static_cast<int>(rows & 0xffff);
  const int limit1 = first + static_cast<int>(rows >> 16);
  const int column = 2 * (lane & 3);
  bool wild = false;
  LATHE_UNROLL
  for (int j = 0; j < 8; ++j) {
    mask_score(d[4 * j], 8 * j + column >= limit0, wild);
    mask_score(d[4 * j + 1], 8 * j + column + 1 >= limit0, wild);
    mask_score(d[4 * j + 2], 8 * j + column >= limit1, wild);
    mask_score(d[4 * j + 3], 8 * j + column + 1 >= limit1, wild);
  }
  return wild;
}

// With A and B swapped a thread holds keys `key` and `key` + 8 of M rows 8 j + 2 (lane % 4) + i.

/// Masks keys from `limit` on, counted from the tile's first key. `limit` is for the work tile's
/// first row; each later row sees one more key.
template <int kCount>
__device__ inline void mask_after_swapped(float (&d)[kCount], const LatentParams& p, int limit,
                                          int key, int lane) {
  if (!seldom(limit < kLatentTile)) return;
  LATHE_UNROLL
  for (int j = 0; j < kCount / 4; ++j) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto m_row = static_cast<std::uint32_t>(8 * j + 2 * (lane & 3) + i);
      const int sees = limit + static_cast<int>(p.by_heads(m_row));
      if (key >= sees) d[4 * j + i] = kNoKey;
      if (key + 8 >= sees) d[4 * j + 2 + i] = kNoKey;
    }
  }
}

}  // namespace lathe::cuda
