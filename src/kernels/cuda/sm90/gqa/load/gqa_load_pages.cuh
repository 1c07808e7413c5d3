// The producer: one warp that copies a KV head's keys and values from pages by TMA.
//
// A page holds all heads' keys token by token, then all heads' values. A box is up to 64 tokens of
// a page and up to 128 bytes of a head, so 64 keys need 1 box (pages of 64 or more) to 4 boxes
// (pages of 16) for each 128 bytes. Each lane copies the boxes of one run of tokens.
#pragma once

#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_segments.cuh"

namespace lathe::cuda {

__host__ __device__ inline int gqa_box_rows(const GqaParams& p) {
  const auto rows = static_cast<int>(p.page_size.divisor);
  return rows < 64 ? rows : 64;
}

/// Rows of missing keys hold arbitrary bytes; the stage's mask says which keys are there.
template <class N>
struct GqaPageProducer {
  const GqaParams& p;
  const GqaRing<N>& ring;
  const void* keys;  // tensor maps
  const void* values;
  int lane, rows;

  __device__ GqaPageProducer(const GqaParams& params, const GqaRing<N>& to, const void* key_map,
                             const void* value_map)
      : p(params),
        ring(to),
        keys(key_map),
        values(value_map),
        lane(static_cast<int>(threadIdx.x) % 32),
        rows(gqa_box_rows(params)) {}

  /// This lane's page of the tile whose first key is `first`.
  struct Box {
    std::int32_t page = -1;  // from the table, or -1
    std::int32_t row = 0;    // of the page
    std::int32_t seen = 0;   // rows from `row` on that are keys
  };
  __device__ Box find(const GqaBlock& b, std::int32_t first) const {
    Box box;
    const std::int32_t key = first + lane * rows;
    if (lane * rows >= N::kTile || key >= b.keys || key < b.begin) return box;
    const auto in_table = static_cast<std::int32_t>(p.page_size(static_cast<std::uint32_t>(key)));
    if (in_table >= p.table_width) return box;
    box.page = p.table[std::int64_t{b.request} * p.table_width + in_table];
    box.row = key - in_table * static_cast<std::int32_t>(p.page_size.divisor);
    box.seen = b.keys - key < rows ? b.keys - key : rows;
    return box;
  }

  /// Copies kCount boxes of a head's rows to `to`.
  template <int kCount>
  __device__ void copy(const Box& box, const void* map, std::int32_t head, std::uint32_t to,
                       std::uint32_t full, std::uint64_t policy) const {
    constexpr int kElements = N::kBoxBytes / N::kElementBytes;
    to += static_cast<std::uint32_t>(lane * rows * N::kBoxBytes);
    LATHE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      copy_box(to + static_cast<std::uint32_t>(i * N::kBoxTileBytes), map,
               (head * kCount + i) * kElements, box.row, box.page, full, policy);
    }
  }
  /// kApart: a tile whose values are not yet on their way.
  struct Tile {
    Box box;
    std::int32_t head;
    GqaStage<N> stage;
  };
  __device__ bool is_there(const Box& box) const { return box.page >= 0 && box.page < p.pages; }
  __device__ void copy_values(const Tile& tile, std::uint64_t policy) const {
    const bool here = is_there(tile.box);
    const int count = count_bits(warp_ballot(here));
    const int stage = tile.stage.index;
    barrier_wait(ring.values_empty_at(stage), tile.stage.parity ^ 1);
    if (lane == 0) {
      barrier_expect(ring.values_full_at(stage),
                     static_cast<std::uint32_t>(count * rows * N::kBoxBytes * N::kValueBoxes));
    }
    sync_warp();
    if (!here) return;
    copy<N::kValueBoxes>(tile.box, values, tile.head, ring.values(stage),
                         ring.values_full_at(stage), policy);
  }

  __device__ void run(std::int32_t worker) const {
    const std::uint64_t policy = cache_policy(p.once);
    GqaSegments segments(p, worker);
    GqaSegment item;
    GqaStage<N> stage;
    Tile before{};
    bool first_tile = true;
    while (segments.next(item)) {
      std::int32_t first = item.first_key<N::kTile>();
      Box box = find(item.block, first);
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t) {
        // Look up the next tile's page while this tile waits for its stage.
        const Box next = find(item.block, first += N::kTile);
        const bool here = is_there(box);
        const int count = count_bits(warp_ballot(here));
        barrier_wait(ring.empty_at(stage.index), stage.parity ^ 1);
        LATHE_UNROLL
        for (int word = 0; word < N::kTile / 64; ++word) {
          const bool mine = here && lane * rows / 64 == word;
          const std::uint64_t bits =
              mine ? (~std::uint64_t{0} >> (64 - box.seen)) << lane * rows % 64 : 0;
          const std::uint32_t low = warp_or(static_cast<std::uint32_t>(bits));
          const std::uint32_t high = warp_or(static_cast<std::uint32_t>(bits >> 32));
          if (lane == 0) {
            store_shared_u64(ring.mask_at(stage, word), std::uint64_t{high} << 32 | low);
          }
        }
        if (lane == 0) {
          constexpr bool kValuesToo = !N::kValuesInKeys && !N::kApart;
          constexpr int kRowBytes = N::kBoxBytes * (N::kBoxes + (kValuesToo ? N::kValueBoxes : 0));
          barrier_expect(ring.full_at(stage.index),
                         static_cast<std::uint32_t>(count * rows * kRowBytes));
        }
        sync_warp();
        if (here) {
          const std::uint32_t full = ring.full_at(stage.index);
          copy<N::kBoxes>(box, keys, item.head, ring.keys(stage.index), full, policy);
          if constexpr (!N::kValuesInKeys && !N::kApart) {
            copy<N::kValueBoxes>(box, values, item.head, ring.values(stage.index), full, policy);
          }
        }
        if constexpr (N::kApart) {
          // Keys of a tile are free before the values of the tile before it.
          if (!first_tile) copy_values(before, policy);
          first_tile = false;
          before = {box, item.head, stage};
        }
        box = next;
        stage.advance();
      }
    }
    if constexpr (N::kApart) {
      if (!first_tile) copy_values(before, policy);
    }
  }
};

}  // namespace lathe::cuda
