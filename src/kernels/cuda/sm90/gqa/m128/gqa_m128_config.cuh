// gqa_m128: M rows, stages, registers and the layout of shared memory.
#pragma once

#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"

namespace lathe::cuda {

/// Keys of a tile. Two resident blocks have no shared memory for stages of 128 keys.
constexpr int gqa_m128_tile(int key_dim, int value_dim, int block_m) {
  return block_m == 64 ? 64 : gqa_m128_tile(key_dim, value_dim);
}

/// kBlockM: M rows of a block, 128 or 64.
template <int kHeadDim, int kValueDim = kHeadDim, bool kOneRow = false, int kBlockM = 128>
struct GqaM128 : GqaTileFormat<kHeadDim, gqa_m128_tile(kHeadDim, kValueDim, kBlockM), false,
                               kValueDim, kOneRow> {
  using Format = GqaTileFormat<kHeadDim, gqa_m128_tile(kHeadDim, kValueDim, kBlockM), false,
                               kValueDim, kOneRow>;
  static constexpr int kMRows = kBlockM, kGroups = kBlockM / 64;
  static constexpr int kBlocksPerSm = gqa_blocks_per_sm(kHeadDim, kValueDim, kBlockM, false);
  // Of the four producer warps one copies tiles, two check values, and one copies queries.
  static constexpr int kCheckWarps = 2, kReleases = 4 * kGroups + kCheckWarps;
  static constexpr int kThreads = 128 * kGroups + 128;
  // Together they use all registers of a block. A block of one group that has an SM for itself
  // needs no more than its threads begin with.
  static constexpr bool kMovesRegisters = kGroups * kBlocksPerSm > 1;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = kGroups == 1 ? 200 : 224;

  static constexpr int kQueryBytes = Format::kDims * 64 * 128;  // of a warpgroup
  static constexpr int kRingAt = kGroups * kQueryBytes;
  // An SM has 228 KiB, of which the driver keeps 1 KiB for each block.
  static constexpr int kMostBytes = kBlocksPerSm == 2 ? 113 << 10 : 227 << 10;
  // Barriers of a stage, and its masks of keys that are there and of keys that are not finite.
  static constexpr int kWholeBytes = 3 * 8 + 2 * Format::kTile / 8;
  // Where three stages fit, whole tiles arrive early enough; apart they are 4 % slower.
  static constexpr bool kApart =
      !kOneRow && kMostBytes - kRingAt < 3 * (Format::kStageBytes + kWholeBytes);
  static constexpr int kSmallBytes = kApart ? 5 * 8 + 4 * Format::kTile / 8 : kWholeBytes;
  static constexpr int kFit = (kMostBytes - kRingAt) / (Format::kStageBytes + kSmallBytes);
  static constexpr int kStages = kFit < 4 ? kFit : 4;
  static constexpr int kSmallAt = kRingAt + kStages * Format::kStageBytes;
  static constexpr int kQueryBarriersAt = kSmallAt + kStages * kSmallBytes;
  static constexpr int kSharedBytes = kQueryBarriersAt + kGroups * 2 * 8;
  static_assert(gqa_rows_on_m(kHeadDim, kBlockM, false));
  static_assert(kStages >= 2 && kSharedBytes <= kMostBytes);
};

}  // namespace lathe::cuda
