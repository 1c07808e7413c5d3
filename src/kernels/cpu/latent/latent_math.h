// The arithmetic of latent attention on the CPU, dispatched at run time to the best SIMD target.
//
// M rows are the (query row, head) pairs that see the same keys: m_row = row * heads + head. Their
// scores for a tile of keys, and the weighted sums of its values, are two small GEMMs. Every M row
// is accumulated over the keys in order, so its bits do not depend on the other M rows of the tile.
#pragma once

#include <cstdint>

#include "kernels/cpu/tile/tile_types.h"

namespace lathe {

inline constexpr std::int64_t kLatentTile = kTile;  // keys of a tile
/// Rows of q, keys and outputs in scratch are padded to a multiple of this many floats, and start
/// at a multiple of 64 bytes.
inline constexpr std::int64_t kLatentPad = 16;

constexpr std::int64_t latent_padded(std::int64_t floats) {
  return (floats + kLatentPad - 1) / kLatentPad * kLatentPad;
}

/// M rows of an unfinished softmax: out is the sum of 2^(score - max) * value. Before the first key
/// the softmax is empty and out 0.
struct LatentState {
  float* out = nullptr;          // [m_rows, out_stride]
  SoftState* softmax = nullptr;  // [m_rows]
};

struct LatentTileJob {
  const float* q =
      nullptr;  // [m_rows, width], scaled to powers of two, zero beyond a row's elements
  const float* keys = nullptr;  // [kLatentTile, key_stride], as q; rows past the last visible one
                                // are never used
  std::int64_t width = 0;       // padded
  std::int64_t key_stride = 0;  // floats
  std::int64_t m_rows = 0;
  const std::int32_t* visible = nullptr;  // [m_rows] an M row sees the tile's first visible[m] keys
  float* scores = nullptr;                // [m_rows, kLatentTile] scratch
  float* rescale = nullptr;               // [m_rows] scratch
  LatentState state;
  std::int64_t out_stride = 0;  // the padded value width; at most width

  LinesAhead* ahead = nullptr;   // the next tile's lines, prefetched while this one is computed
  std::int64_t ahead_lines = 0;  // number of those lines
};

/// Adds a tile of keys to the state.
void latent_add_tile(const LatentTileJob& job);

/// into = the softmax over the keys of both states. A state without keys does not change a bit of
/// the other.
void latent_fold(const LatentState& from, const LatentState& into, std::int64_t m_rows,
                 std::int64_t out_stride);

/// Name of the SIMD target in use ("AVX3_ZEN4"), for reports.
const char* latent_simd_target();

}  // namespace lathe
