// The ring of stages between producer (gqa_load_pages.cuh, gqa_load_rows.cuh) and consumers. A
// stage holds a tile of a KV head's keys and values. With kApart they are filled and released by
// themselves: keys are free as soon as the scores are there, half a tile before the values, so that
// two stages suffice to load while products run.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// Shared memory of a tile of keys or values: boxes of up to 128 bytes of each row, one after
/// another, swizzled over the bytes of their rows. kOneRow: a value is the first kValueDim elements
/// of its key, so a tile of keys is also the tile of values (latent attention).
template <int kHeadDim, int kTileKeys, bool kFp8, int kValueDim = kHeadDim, bool kOneRow = false>
struct GqaTileFormat {
  static constexpr bool kValuesInKeys = kOneRow;
  static constexpr bool kApart = false;
  // Rows select from latents of kGqaListedLatent alone; other kernels have no branch for it.
  static constexpr bool kListsRows = kOneRow && kValueDim <= 128;
  static constexpr int kTile = kTileKeys;
  static constexpr int kDims = (kHeadDim + 63) / 64;  // of keys; beyond kHeadDim nobody reads
  static constexpr int kKeySteps = kHeadDim / 16;     // of matrix products with keys
  static constexpr int kValueDims = kValueDim / 64;
  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kBoxBytes = kFp8 && kHeadDim % 128 != 0 ? 64 : 128;
  static constexpr int kBoxes = (kHeadDim * kElementBytes + kBoxBytes - 1) / kBoxBytes;
  static constexpr int kValueBoxes = kValueDim * kElementBytes / kBoxBytes;
  static constexpr int kBoxTileBytes = kTile * kBoxBytes;
  static constexpr int kKeyBytes = kBoxes * kBoxTileBytes;
  static constexpr int kStageBytes = kKeyBytes + (kOneRow ? 0 : kValueBoxes * kBoxTileBytes);
  static constexpr int kDimTileBytes = kTile * 128;  // of 64 bf16 dimensions
  // Besides the tiles: two barriers and a mask.
  static constexpr int kStageSmallBytes = 16 + kTile / 8;
};

/// Elements of a query head, which is as wide as a key. Keys with values in them may be narrower
/// than whole tiles; the rest of a tile is zeros.
template <class N>
__device__ __forceinline__ std::int32_t q_head(const GqaParams& p) {
  return N::kValuesInKeys ? p.q_head : N::kDims * 64;
}
/// Whether a chunk of 8 elements of a tile's row is in the head.
template <class N>
__device__ __forceinline__ bool in_head(const GqaParams& p, int chunk) {
  return !N::kValuesInKeys || chunk * 8 < p.q_head;
}

/// Whether lists name the keys, so that the producer copies rows one by one (gqa_load_rows.cuh).
template <class N>
__device__ __forceinline__ bool lists_rows(const GqaParams& p) {
  return N::kListsRows && p.indices != nullptr;
}
/// Call after waiting for a full stage, before wgmma reads it: copies of listed rows are ordinary
/// stores to shared memory.
template <class N>
__device__ __forceinline__ void see_rows(const GqaParams& p) {
  if (lists_rows<N>(p)) fence_async_proxy();
}

/// A position in the ring, and the parity of how often it has wrapped.
template <class N>
struct GqaStage {
  int index = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++index < N::kStages) return;
    index = 0;
    parity ^= 1;
  }
};

/// N: a GqaTileFormat with kStages; kReleases, the warps that must release a stage; and
/// kCheckWarps, how many of them check values (gqa_edge.cuh).
template <class N>
struct GqaRing {
  std::uint32_t tiles;    // [stages] x keys and values
  std::uint32_t full;     // [stages] barriers
  std::uint32_t empty;    // [stages] barriers
  std::uint32_t masks;    // [stages][tile] bits: which keys are there
  std::uint32_t checked;  // with kCheckWarps: [stages] barriers
  std::uint32_t wild;     // with kCheckWarps: [stages][tile] bits: keys that are not finite
  std::uint32_t values_full, values_empty;  // kApart: [stages] barriers
  // kApart: a mask is read until the tile's values are released, when the stage's keys may be those
  // of a later tile. So each stage has two masks that take turns.
  static constexpr int kMasks = N::kApart ? 2 * N::kStages : N::kStages;

  __device__ GqaRing(std::uint32_t tiles_at, std::uint32_t small_at)
      : tiles(tiles_at),
        full(small_at),
        empty(full + 8 * N::kStages),
        masks(empty + 8 * N::kStages),
        checked(masks + kMasks * (N::kTile / 8)),
        wild(checked + 8 * N::kStages),
        values_full(wild + kMasks * (N::kTile / 8)),
        values_empty(values_full + 8 * N::kStages) {}
  /// Call from one thread, before sync_block(). rows: the producer copies rows one by one.
  __device__ void init(bool rows = false) const {
    for (int i = 0; i < N::kStages; ++i) {
      barrier_init(full_at(i), rows ? kGqaRowArrivals : kGqaPageArrivals);
      // Nobody checks keys.
      barrier_init(empty_at(i), N::kApart ? N::kReleases - N::kCheckWarps : N::kReleases);
      if constexpr (N::kCheckWarps > 0) barrier_init(checked_at(i), N::kCheckWarps);
      if constexpr (N::kApart) {
        barrier_init(values_full_at(i), kGqaPageArrivals);
        barrier_init(values_empty_at(i), N::kReleases);
      }
    }
    barriers_visible();
  }
  __device__ std::uint32_t keys(int stage) const {
    return tiles + static_cast<std::uint32_t>(stage * N::kStageBytes);
  }
  __device__ std::uint32_t values(int stage) const {
    return keys(stage) + (N::kValuesInKeys ? 0 : N::kKeyBytes);
  }
  __device__ std::uint32_t full_at(int stage) const {
    return full + static_cast<std::uint32_t>(8 * stage);
  }
  __device__ std::uint32_t empty_at(int stage) const {
    return empty + static_cast<std::uint32_t>(8 * stage);
  }
  /// Barriers of a stage's values.
  __device__ std::uint32_t values_full_at(int stage) const {
    return N::kApart ? values_full + static_cast<std::uint32_t>(8 * stage) : full_at(stage);
  }
  __device__ std::uint32_t values_empty_at(int stage) const {
    return N::kApart ? values_empty + static_cast<std::uint32_t>(8 * stage) : empty_at(stage);
  }
  __device__ std::uint32_t mask_at(const GqaStage<N>& stage, int word = 0) const {
    return masks + mask_offset(stage, word);
  }
  __device__ std::uint32_t checked_at(int stage) const {
    return checked + static_cast<std::uint32_t>(8 * stage);
  }
  __device__ std::uint32_t wild_at(const GqaStage<N>& stage, int word = 0) const {
    return wild + mask_offset(stage, word);
  }

 private:
  __device__ static std::uint32_t mask_offset(const GqaStage<N>& stage, int word) {
    const int at =
        N::kApart ? stage.index + static_cast<int>(stage.parity) * N::kStages : stage.index;
    return static_cast<std::uint32_t>(at * (N::kTile / 8) + 8 * word);
  }
};

}  // namespace lathe::cuda
