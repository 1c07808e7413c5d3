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

  __device__ void copy(const Box& box, std::int32_t head, int stage, std::uint64_t policy) const {
    const std::uint32_t full = ring.full_at(stage);
    const auto row = static_cast<std::uint32_t>(lane * rows * N::kBoxBytes);
    constexpr int kElements = N::kBoxBytes / N::kElementBytes;
    const auto at = [&](int i) { return row + static_cast<std::uint32_t>(i * N::kBoxTileBytes); };
    LATHE_UNROLL
    for (int i = 0; i < N::kBoxes; ++i) {
      copy_box(ring.keys(stage) + at(i), keys, (head * N::kBoxes + i) * kElements, box.row,
               box.page, full, policy);
    }
    if constexpr (!N::kValuesInKeys) {
      LATHE_UNROLL
      for (int i = 0; i < N::kValueBoxes; ++i) {
        copy_box(ring.values(stage) + at(i), values, (head * N::kValueBoxes + i) * kElements,
                 box.row, box.page, full, policy);
      }
    }
  }

  __device__ void run(std::int32_t worker) const {
    const std::uint64_t policy = cache_policy(p.once);
    GqaSegments segments(p, worker);
    GqaSegment item;
    GqaStage<N> stage;
    while (segments.next(item)) {
      std::int32_t first = item.first_key<N::kTile>();
      Box box = find(item.block, first);
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t) {
        // Look up the next tile's page while this tile waits for its stage.
        const Box next = find(item.block, first += N::kTile);
        const bool here = box.page >= 0 && box.page < p.pages;
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
            store_shared_u64(ring.mask_at(stage.index, word), std::uint64_t{high} << 32 | low);
          }
        }
        if (lane == 0) {
          constexpr int kRowBytes =
              N::kBoxBytes * (N::kBoxes + (N::kValuesInKeys ? 0 : N::kValueBoxes));
          barrier_expect(ring.full_at(stage.index),
                         static_cast<std::uint32_t>(count * rows * kRowBytes));
        }
        sync_warp();
        if (here) copy(box, item.head, stage.index, policy);
        box = next;
        stage.advance();
      }
    }
  }
};

}  // namespace lathe::cuda
