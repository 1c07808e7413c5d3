// gqa_swap_ab: M rows, stages and the layout of shared memory.
#pragma once

#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"

namespace lathe::cuda {

/// kBlockM: M rows of a block. kFp8: keys and values are e4m3, else bf16. kValueDim, kOneRow: as in
/// GqaTileFormat.
template <int kHeadDim, int kBlockM, bool kFp8, int kValueDim = kHeadDim, bool kOneRow = false>
struct GqaSwapAb : GqaTileFormat<kHeadDim, 64, kFp8, kValueDim, kOneRow> {
  using Format = GqaTileFormat<kHeadDim, 64, kFp8, kValueDim, kOneRow>;
  static constexpr int kMRows = kBlockM;
  static constexpr int kReleases = 4, kCheckWarps = 0, kThreads = 160;
  static constexpr bool kWidens = kFp8;
  static constexpr int kBlocksPerSm = gqa_blocks_per_sm(kHeadDim, kValueDim, kBlockM, kFp8);

  static constexpr int kPAt = Format::kDims * kMRows * 128;
  static constexpr int kWideAt = kPAt + kMRows * 128;
  static constexpr int kRingAt = kWideAt + (kFp8 ? Format::kDims * Format::kDimTileBytes : 0);
  static constexpr int kMaxStages = 8;
  static constexpr int kSmallBytes = kMaxStages * Format::kStageSmallBytes + 6 * kMRows * 4;
  // An SM has 228 KiB, of which the driver keeps 1 KiB for each block.
  static constexpr int kMostBytes = kBlocksPerSm == 2 ? 113 << 10 : 227 << 10;
  static constexpr int kFit = (kMostBytes - kSmallBytes - kRingAt) / Format::kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kSmallAt = kRingAt + kStages * Format::kStageBytes;
  static constexpr int kSharedBytes = kSmallAt + kSmallBytes;
  // Two heads of 512 dimensions do not fit: there, copies and products take turns.
  static_assert(kStages >= (kValueDim > 256 ? 1 : 2) && kSharedBytes <= kMostBytes);
  static_assert(kBlockM <= gqa_swapped_rows(kValueDim));
};

template <class N>
struct GqaSwapAbShared {
  GqaRing<N> ring;
  std::uint32_t q;                   // [dims] tiles of bf16 [M rows, 64], swizzled
  std::uint32_t p;                   // bf16 [M rows, 64 keys], swizzled
  std::uint32_t wide;                // fp8: [dims] tiles of bf16 [64 keys, 64], swizzled
  std::uint32_t columns;             // [4 warps][M rows] f32: maxima, then row sums
  std::uint32_t row_maxes, factors;  // [M rows] f32

  __device__ explicit GqaSwapAbShared(std::uint32_t base)
      : ring(base + N::kRingAt, base + N::kSmallAt),
        q(base),
        p(base + N::kPAt),
        wide(base + N::kWideAt),
        columns(base + N::kSmallAt + N::kStages * N::kStageSmallBytes),
        row_maxes(columns + 4 * N::kMRows * 4),
        factors(row_maxes + N::kMRows * 4) {}
};

}  // namespace lathe::cuda
