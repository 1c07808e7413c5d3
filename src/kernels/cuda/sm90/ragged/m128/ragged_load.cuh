// The producer: one warp that copies a head's expanded keys and values by TMA.
//
// A box is a tile's rows by 64 dimensions. The last box of the keys is the RoPE part, from the
// latents. Each lane issues one box of keys and one of values. With kApart, keys of a tile are
// copied before the values of the tile before it, as their places are free in this order.
#pragma once

#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_segments.cuh"
#include "kernels/cuda/sm90/ragged/ragged_params.h"

namespace lathe::cuda {

/// Rows beyond a request's keys hold arbitrary bytes; the stage's mask says which keys are there.
template <class N>
struct RaggedProducer {
  static constexpr int kLaneKeys = N::kTile / 32;  // keys of a tile that a lane checks
  static constexpr int kNopeBoxes = N::kBoxes - 1;
  static_assert(N::kBoxes <= 32);

  const RaggedParams& p;
  const GqaRing<N>& ring;
  const void* expanded;  // tensor maps
  const void* latents;
  int lane;

  __device__ RaggedProducer(const RaggedParams& params, const GqaRing<N>& to,
                            const void* expanded_map, const void* latent_map)
      : p(params),
        ring(to),
        expanded(expanded_map),
        latents(latent_map),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  /// Whether keys first + lane, first + lane + 32, ... are there.
  struct Seen {
    bool key[kLaneKeys];
  };
  __device__ Seen look(std::int32_t base, std::int32_t first, std::int32_t end) const {
    Seen seen;
    LATHE_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) {
      const std::int32_t key = first + 32 * i + lane;
      seen.key[i] = key < end && p.slots[base + key] >= 0;
    }
    return seen;
  }

  /// row: index, in the pass, of the tile's first key.
  __device__ void copy_keys(std::int32_t head, std::int32_t row, int stage,
                            std::uint64_t policy) const {
    const std::uint32_t full = ring.full_at(stage);
    if (lane == 0) barrier_expect(full, N::kApart ? N::kKeyBytes : N::kStageBytes);
    sync_warp();
    const std::uint32_t to = ring.keys(stage) + static_cast<std::uint32_t>(lane * N::kBoxTileBytes);
    if (lane == kNopeBoxes) {
      copy_box(to, latents, p.latent_width - kRaggedRope, row, 0, full, policy);
    } else if (lane < kNopeBoxes) {
      copy_box(to, expanded, head * p.head_width + 64 * lane, row, 0, full, policy);
    }
  }
  struct Tile {
    std::int32_t head, row;
    GqaStage<N> stage;
  };
  __device__ void await_values(const Tile& tile) const {
    const int stage = tile.stage.index;
    barrier_wait(ring.values_empty_at(stage), tile.stage.parity ^ 1);
    if (lane == 0) barrier_expect(ring.values_full_at(stage), N::kStageBytes - N::kKeyBytes);
    sync_warp();
  }
  __device__ void copy_values(const Tile& tile, std::uint64_t policy) const {
    if (lane >= N::kValueBoxes) return;
    const int stage = tile.stage.index;
    const std::uint32_t full = ring.values_full_at(stage);
    copy_box(ring.values(stage) + static_cast<std::uint32_t>(lane * N::kBoxTileBytes), expanded,
             tile.head * p.head_width + 64 * (kNopeBoxes + lane), tile.row, 0, full, policy);
  }

  __device__ void run(std::int32_t worker) const {
    const std::uint64_t policy = cache_policy(false);
    GqaSegments segments(p.gqa, worker);
    GqaSegment item;
    GqaStage<N> stage;
    Tile before{};
    bool first_tile = true;
    while (segments.next(item)) {
      const std::int32_t base = p.bases[item.block.request];
      const std::int32_t count = p.bases[item.block.request + 1] - base;
      const std::int32_t end = item.block.keys < count ? item.block.keys : count;
      std::int32_t first = item.first_key<N::kTile>();
      Seen seen = look(base, first, end);
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t) {
        // Load the next tile's slots while this tile waits for its stage.
        const Seen next = look(base, first + N::kTile, end);
        barrier_wait(ring.empty_at(stage.index), stage.parity ^ 1);
        LATHE_UNROLL
        for (int word = 0; word < N::kTile / 64; ++word) {
          const std::uint32_t low = warp_ballot(seen.key[2 * word]);
          const std::uint32_t high = warp_ballot(seen.key[2 * word + 1]);
          if (lane == 0) {
            store_shared_u64(ring.mask_at(stage, word), std::uint64_t{high} << 32 | low);
          }
        }
        copy_keys(item.head, base + first, stage.index, policy);
        const Tile tile{item.head, base + first, stage};
        if constexpr (N::kApart) {
          if (!first_tile) {
            await_values(before);
            copy_values(before, policy);
          }
          first_tile = false;
          before = tile;
        } else {
          copy_values(tile, policy);
        }
        seen = next;
        first += N::kTile;
        stage.advance();
      }
    }
    if constexpr (N::kApart) {
      if (first_tile) return;
      await_values(before);
      copy_values(before, policy);
    }
  }
};

}  // namespace lathe::cuda
