// Masks scores of keys that an M row does not see. A thread's fragment of a tile of 64 M rows x 64
// keys is as in wgmma.cuh.
#pragma once

#include "kernels/cuda/sm90/attention/mask.cuh"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Masks keys from `limit` on, counted from the tile's first key, for a thread's two M rows.
__device__ inline void mask_after(float (&d)[32], int limit0, int limit1, int lane) {
  if (!seldom(limit0 < kLatentTile || limit1 < kLatentTile)) return;
  const int column = 2 * (lane & 3);
  LATHE_UNROLL
  for (int j = 0; j < 8; ++j) {
    if (8 * j + column >= limit0) d[4 * j] = kNoKey;
    if (8 * j + column + 1 >= limit0) d[4 * j + 1] = kNoKey;
    if (8 * j + column >= limit1) d[4 * j + 2] = kNoKey;
    if (8 * j + column + 1 >= limit1) d[4 * j + 3] = kNoKey;
  }
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
