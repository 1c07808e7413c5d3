// gqa_mma_fp8: M rows, stages and the layout of shared memory.
#pragma once

#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"

namespace lathe::cuda {

/// kRows: M rows of each KV head. kItemHeads: KV heads of an item, whose rows are side by side in a
/// tile.
template <int kHeadDim, int kRows, int kItemHeads>
struct GqaMmaFp8 : GqaTileFormat<kItemHeads * kHeadDim, gqa_mma_fp8_tile(kHeadDim, kRows), true> {
  using Format = GqaTileFormat<kItemHeads * kHeadDim, gqa_mma_fp8_tile(kHeadDim, kRows), true>;
  static constexpr int kMRows = kRows, kDim = kHeadDim, kHeads = kItemHeads;
  static constexpr int kBlockM = kHeads * kMRows;  // GqaParams::block_m
  static constexpr int kBlocksPerSm = gqa_blocks_per_sm(kHeadDim, kHeadDim, kMRows, true);
  static constexpr int kReleases = 4, kCheckWarps = 0, kThreads = 160;

  // Rows are apart by an odd number of 32 bytes (queries) or 16 (outputs), so that the rows that a
  // load or store of 8 bytes a lane touches have banks of their own.
  static constexpr int kQueryBytes = kDim * 2 + 32;
  static constexpr int kOutBytes = kDim * 4 + 16;
  static constexpr int kQueriesAt = 0;
  static constexpr int kOutAt = kQueriesAt + kBlockM * kQueryBytes;
  static constexpr int kRingAt = (kOutAt + 2 * kBlockM * kOutBytes + 1023) / 1024 * 1024;
  static constexpr int kMaxStages = 8;
  static constexpr int kSmallBytes =
      kMaxStages * Format::kStageSmallBytes + (8 * kMRows + kBlockM) * 4;
  // An SM has 228 KiB, of which the driver keeps 1 KiB for each block.
  static constexpr int kMostBytes = ((228 / kBlocksPerSm) - 1) << 10;
  static constexpr int kFit = (kMostBytes - kSmallBytes - kRingAt) / Format::kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kSmallAt = kRingAt + kStages * Format::kStageBytes;
  static constexpr int kSharedBytes = kSmallAt + kSmallBytes;
  static_assert(kStages >= 2 && kSharedBytes <= kMostBytes);

  /// TMA's: chunk c of 16 bytes of a key's box is at c ^ swizzle.
  __device__ static constexpr int swizzle(int key) {
    return Format::kBoxBytes == 128 ? key & 7 : key >> 1 & 3;
  }
};

template <class N>
struct GqaMmaFp8Shared {
  GqaRing<N> ring;
  std::uint32_t q;        // bf16 [heads, M rows, dims], kQueryBytes from row to row
  std::uint32_t out;      // f32 [2][heads, M rows, dims], kOutBytes from row to row: sums of every
                          // other warp
  std::uint32_t maxima;   // [warps of a head][heads, M rows] f32: row maxes
  std::uint32_t sums;     // the same of row sums
  std::uint32_t factors;  // [heads, M rows] f32

  __device__ explicit GqaMmaFp8Shared(std::uint32_t base)
      : ring(base + N::kRingAt, base + N::kSmallAt),
        q(base + N::kQueriesAt),
        out(base + N::kOutAt),
        maxima(base + N::kSmallAt + N::kStages * N::kStageSmallBytes),
        sums(maxima + 4 * N::kMRows * 4),
        factors(sums + 4 * N::kMRows * 4) {}
};

}  // namespace lathe::cuda
