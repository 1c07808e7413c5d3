// The arithmetic of latent attention on the CPU, dispatched at run time to the best SIMD target.
//
// "Lines" are the (query row, head) pairs that see the same keys: line = row * heads + head. Their
// scores against a tile of keys, and the weighted sum of its values, are two small matrix products.
// Every line's numbers are accumulated over the keys one after the other, whatever other lines
// share the tile, so its bits do not depend on them.
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

/// Lines of a softmax that is not finished: out is the sum of 2^(score - max) * value. No key yet:
/// the softmax is empty and out 0.
struct LatentState {
  float* out = nullptr;          // [lines, out_stride]
  SoftState* softmax = nullptr;  // [lines]
};

struct LatentTileJob {
  const float* q =
      nullptr;  // [lines, width], scaled to powers of two, zero beyond a row's elements
  const float* keys = nullptr;  // [kLatentTile, key_stride], as q; rows past the last visible one
                                // are never used
  std::int64_t width = 0;       // padded
  std::int64_t key_stride = 0;  // floats
  std::int64_t lines = 0;
  const std::int32_t* visible = nullptr;  // [lines] how many of the tile's first keys a line sees
  float* scores = nullptr;                // [lines, kLatentTile] scratch
  float* rescale = nullptr;               // [lines] scratch
  LatentState state;
  std::int64_t out_stride = 0;  // the padded value width; at most width

  LinesAhead* ahead = nullptr;   // of the next tile, asked for while this one is computed
  std::int64_t ahead_lines = 0;  // how many there are
};

/// Adds a tile of keys to the state.
void latent_add_tile(const LatentTileJob& job);

/// into = the softmax over both states' keys; a state without keys changes no bit of the other.
void latent_fold(const LatentState& from, const LatentState& into, std::int64_t lines,
                 std::int64_t out_stride);

/// Name of the SIMD target in use ("AVX3_ZEN4"), for reports.
const char* latent_simd_target();

}  // namespace lathe
