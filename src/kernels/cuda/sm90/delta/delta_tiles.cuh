// Tiles of the chunked form in shared memory, and copies to them.
#pragma once

#include "kernels/cuda/sm90/delta/delta_rows.cuh"
#include "kernels/cuda/sm90/delta/warp_mma.cuh"

namespace lathe::cuda {

inline constexpr int kDeltaThreads = 256;  // of a block of the chunked form

using KeyTile = SharedTile<kDeltaWidth + 8>;        // [64, 128]
using ScoreTile = SharedTile<kDeltaChunkRows + 8>;  // [64, 64]

inline constexpr int kKeyTileBytes = kDeltaChunkRows * (kDeltaWidth + 8) * 2;
inline constexpr int kScoreTileBytes = kDeltaChunkRows * (kDeltaChunkRows + 8) * 2;
inline constexpr std::int64_t kKeyTileElements = std::int64_t{kDeltaChunkRows} * kDeltaWidth;
inline constexpr std::int64_t kScoreTileElements = std::int64_t{kDeltaChunkRows} * kDeltaChunkRows;

/// Copies [64, columns] of bf16, 16 bytes a thread.
template <class Tile>
__device__ inline void copy_tile(const Tile& to, const bf16* from, int columns,
                                 std::int64_t stride) {
  const int chunks = columns / 8;
  for (auto i = static_cast<int>(threadIdx.x); i < kDeltaChunkRows * chunks; i += kDeltaThreads) {
    const int row = i / chunks, column = i % chunks * 8;
    copy_async(to.at(row, column), from + row * stride + column, true);
  }
}
/// Copies a chunk's rows of `mixed`, 128 columns from `column` on; rows outside of the request are
/// 0.
__device__ inline void copy_mixed(const DeltaParams& p, const DeltaChunkRows& c,
                                  std::int64_t column, const KeyTile& to) {
  constexpr int kChunks = kDeltaWidth / 8;
  for (auto i = static_cast<int>(threadIdx.x); i < kDeltaChunkRows * kChunks; i += kDeltaThreads) {
    const std::int64_t row = c.row(i / kChunks);
    const bf16* const from = p.mixed + (row < 0 ? 0 : row) * p.channels + column + i % kChunks * 8;
    copy_async(to.at(i / kChunks, i % kChunks * 8), from, row >= 0);
  }
}

}  // namespace lathe::cuda
