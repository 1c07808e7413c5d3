// Where the shared memory of the kernel for 64 lines on bf16 caches lies, and what its roles take.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_bf16_rows.cuh"
#include "kernels/cuda/sm90/latent/load/load_pages.cuh"

namespace lathe::cuda {

/// kPages: the copy engine brings whole boxes of pages (load_pages.cuh). kCluster: of so many
/// blocks, which do neighbouring tiles of a unit's lines and bring each other keys.
template <class Format, bool kPages, int kCluster>
struct LatentWide {
  static constexpr bool kPaged = kPages;
  static constexpr int kBlocks = kCluster;
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kLines = 64;
  static constexpr int kBuffers = 2;
  static constexpr int kThreads = 384;
  static constexpr int kValues = 512;
  // With a rotary part behind the values its tile is free once the scores are there, and takes the
  // weights.
  static constexpr bool kWeightsInKeys = kDims == 9;

  // Together what a block of 384 threads has.
  static constexpr int kFillRegisters = kPages ? 56 : 72;
  static constexpr int kGroupRegisters = (504 - kFillRegisters) / 2;

  // Something in a tile was, by other threads.
  static constexpr bool kCopied = !kPages;

  static constexpr int kKeyBytes = kDims * kDimTileBytes;
  static constexpr int kWeightsAt = 3 * kKeyBytes;
  static constexpr int kSmallAt = kWeightsAt + (kWeightsInKeys ? 0 : 2 * kDimTileBytes);
  static constexpr int kSmallBytes =
      128 + 2 * 512 + LatentShared::kSlotBytes + 2 * LatentItemFacts::kBytes;
  static constexpr int kSharedBytes = kSmallAt + kSmallBytes;

  // Named barriers.
  static constexpr int kSumsReady = 3, kCleared = 4, kOutputs = 6;
};

template <class W>
struct LatentWideShared {
  LatentShared fill;
  std::uint32_t weights[2];
  std::uint32_t ready;       // [2] barriers: a tile has weights and references
  std::uint32_t references;  // [2][64] f32
  std::uint32_t sums;        // [2][64] f32
  std::uint32_t facts;       // of items in turns, where they are told

  __device__ explicit LatentWideShared(std::uint32_t base) {
    fill.q = base;
    fill.keys = base + W::kKeyBytes;
    weights[0] = W::kWeightsInKeys ? fill.keys + 8 * kDimTileBytes : base + W::kWeightsAt;
    weights[1] = weights[0] + (W::kWeightsInKeys ? W::kKeyBytes : kDimTileBytes);
    const std::uint32_t small = base + W::kSmallAt;
    fill.q_full = small;
    fill.q_empty = small + 8;
    fill.full = small + 16;
    fill.empty = small + 48;
    ready = small + 80;
    references = small + 128;
    sums = references + 512;
    facts = sums + 512;
    fill.put_slots(facts + 2 * LatentItemFacts::kBytes);
  }
  /// Keys arrive by halves of the values; what follows the values comes with one of them.
  __device__ std::uint32_t full(int buffer, int half) const {
    return fill.full + 16 * buffer + 8 * half;
  }
};

}  // namespace lathe::cuda
