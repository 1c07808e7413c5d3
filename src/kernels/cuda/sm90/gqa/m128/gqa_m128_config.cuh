// gqa_m128: M rows, stages, registers and the layout of shared memory.
#pragma once

#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"

namespace lathe::cuda {

template <int kHeadDim, int kValueDim = kHeadDim, bool kOneRow = false>
struct GqaM128
    : GqaTileFormat<kHeadDim, gqa_m128_tile(kHeadDim, kValueDim), false, kValueDim, kOneRow> {
  using Format =
      GqaTileFormat<kHeadDim, gqa_m128_tile(kHeadDim, kValueDim), false, kValueDim, kOneRow>;
  static constexpr int kMRows = 128, kGroups = 2;
  static constexpr int kCheckWarps = 2, kReleases = 4 * kGroups + kCheckWarps;
  static constexpr int kThreads = 128 * kGroups + 128;
  // Together they use all registers of a block.
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

  static constexpr int kQueryBytes = Format::kDims * 64 * 128;  // of a warpgroup
  static constexpr int kRingAt = kGroups * kQueryBytes;
  static constexpr int kMostBytes = 227 << 10;
  static constexpr int kCheckBytes = 8 + Format::kTile / 8;  // of a stage
  static constexpr int kFit =
      (kMostBytes - kRingAt) / (Format::kStageBytes + Format::kStageSmallBytes + kCheckBytes);
  static constexpr int kStages = kFit < 4 ? kFit : 4;
  static constexpr int kSmallAt = kRingAt + kStages * Format::kStageBytes;
  static constexpr int kSharedBytes = kSmallAt + kStages * (Format::kStageSmallBytes + kCheckBytes);
  static_assert(kStages >= 2 && kSharedBytes <= kMostBytes);
};

}  // namespace lathe::cuda
