// m64 on bf16: tiles, shared-memory layout and register budget.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_bf16_rows.cuh"
#include "kernels/cuda/sm90/latent/load/load_pages.cuh"

namespace lathe::cuda {

/// kPages: keys come by TMA boxes of pages (load_pages.cuh). kCluster: blocks of a cluster, which
/// compute neighbouring M blocks of a work tile and multicast keys to each other.
template <class Format, bool kPages, int kCluster>
struct LatentM64 {
  static constexpr bool kPaged = kPages;
  static constexpr int kBlocks = kCluster;
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kMRows = 64;
  static constexpr int kBuffers = 2;
  static constexpr int kThreads = 384;
  static constexpr int kValues = 512;
  // With RoPE after the values, RoPE's tile is free once S is done, and then holds P.
  static constexpr bool kPInKeys = kDims == 9;

  // Together they use the 504 registers of a block of 384 threads.
  static constexpr int kProducerRegisters = kPages ? 56 : 72;
  static constexpr int kConsumerRegisters = (504 - kProducerRegisters) / 2;

  // Threads, not TMA, write the tile.
  static constexpr bool kCopied = !kPages;

  static constexpr int kKeyBytes = kDims * kDimTileBytes;
  static constexpr int kPAt = 3 * kKeyBytes;
  static constexpr int kSmallAt = kPAt + (kPInKeys ? 0 : 2 * kDimTileBytes);
  static constexpr int kSmallBytes =
      128 + 2 * 512 + LatentShared::kSlotBytes + 2 * LatentWorkInfo::kBytes;
  static constexpr int kSharedBytes = kSmallAt + kSmallBytes;

  // Named barriers.
  static constexpr int kRowSumsReady = 3, kCleared = 4, kOutputs = 6;
};

template <class W>
struct LatentM64Shared {
  LatentShared smem;
  std::uint32_t p_tile[2];
  std::uint32_t ready;      // [2] barriers: P and row maxes of a tile are ready
  std::uint32_t row_maxes;  // [2][64] f32
  std::uint32_t row_sums;   // [2][64] f32
  std::uint32_t info;       // info of two work items, alternating

  __device__ explicit LatentM64Shared(std::uint32_t base) {
    smem.q = base;
    smem.keys = base + W::kKeyBytes;
    p_tile[0] = W::kPInKeys ? smem.keys + 8 * kDimTileBytes : base + W::kPAt;
    p_tile[1] = p_tile[0] + (W::kPInKeys ? W::kKeyBytes : kDimTileBytes);
    const std::uint32_t small = base + W::kSmallAt;
    smem.q_full = small;
    smem.q_empty = small + 8;
    smem.full = small + 16;
    smem.empty = small + 48;
    ready = small + 80;
    row_maxes = small + 128;
    row_sums = row_maxes + 512;
    info = row_sums + 512;
    smem.put_slots(info + 2 * LatentWorkInfo::kBytes);
  }
  /// Keys arrive by halves of the values; RoPE comes with one of them.
  __device__ std::uint32_t full(int buffer, int half) const {
    return smem.full + 16 * buffer + 8 * half;
  }
};

}  // namespace lathe::cuda
