// Tiles of the chunked form in shared memory, and copies to them.
#pragma once

#include "kernels/cuda/sm90/delta/delta_rows.cuh"
#include "kernels/cuda/sm90/delta/warp_mma.cuh"

namespace lathe::cuda {

inline constexpr int kDeltaThreads = 256;  // that compute, in a block of the chunked form
inline constexpr int kScanColumns = 32;    // of S in a block of delta_scan_kernel()

using KeyTile = SharedTile<kDeltaWidth + 8>;        // [64, 128]
using ScoreTile = SharedTile<kDeltaChunkRows + 8>;  // [64, 64]
using ColumnTile = SharedTile<kScanColumns + 8>;    // [64 or 128, 32]

// Scratch has tiles with the rows' padding, so that one bulk copy moves a tile.
inline constexpr int kKeyTileElements = kDeltaChunkRows * (kDeltaWidth + 8);
inline constexpr int kScoreTileElements = kDeltaChunkRows * (kDeltaChunkRows + 8);
inline constexpr int kColumnTileElements = kDeltaChunkRows * (kScanColumns + 8);
inline constexpr int kKeyTileBytes = 2 * kKeyTileElements;
inline constexpr int kScoreTileBytes = 2 * kScoreTileElements;
inline constexpr int kColumnTileBytes = 2 * kColumnTileElements;
inline constexpr int kColumnTiles = kDeltaWidth / kScanColumns;

/// The number of a head's tiles of q and k in a chunk: with one gate per head, those of a key head
/// are common to its value heads.
__device__ inline std::int64_t key_tile_of(const DeltaParams& p, std::int64_t chunk,
                                           std::int64_t head) {
  return chunk * p.key_heads + head / (p.heads / p.key_heads);
}

/// Copies a chunk's rows of `mixed`, 128 columns from `column` on, 16 bytes a thread.
__device__ inline void copy_mixed(const DeltaParams& p, const DeltaChunkRows& c,
                                  std::int64_t column, const KeyTile& to) {
  constexpr int kChunks = kDeltaWidth / 8;
  for (auto i = static_cast<int>(threadIdx.x); i < kDeltaChunkRows * kChunks; i += kDeltaThreads) {
    const bf16* const from = p.mixed + c.near_row(i / kChunks) * p.channels + column;
    copy_async(to.at(i / kChunks, i % kChunks * 8), from + i % kChunks * 8, true);
  }
}

}  // namespace lathe::cuda
