// The producer for rows that select their keys: one warp that copies listed latent rows.
//
// A tile's rows are anywhere in the pool, so a lane finds the addresses of kTile / 32 of them, and
// then eight lanes copy 128 bytes of a row at a time: loads are whole cache lines, and stores to
// shared memory have no bank conflicts. A copy is 16 bytes (cp.async), written where TMA's swizzle
// would put them.
#pragma once

#include "kernels/cuda/sm90/attention/swizzle.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_load_pages.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_segments.cuh"

namespace lathe::cuda {

/// N: of latents. Rows of missing keys hold arbitrary bytes; the stage's mask says which keys are
/// there. Dims of a tile beyond the row are zeros.
template <class N>
struct GqaRowProducer {
  static constexpr int kWords = N::kTile / 32;  // rows of a lane
  static_assert(N::kElementBytes == 2 && N::kBoxBytes == 128);

  const GqaParams& p;
  const GqaRing<N>& ring;
  int lane;

  __device__ GqaRowProducer(const GqaParams& params, const GqaRing<N>& to)
      : p(params), ring(to), lane(static_cast<int>(threadIdx.x) % 32) {}

  /// The row of key `key` of the block's list; null: no key.
  __device__ const std::byte* find(const GqaBlock& b, std::int32_t key) const {
    if (key >= b.keys) return nullptr;
    const std::int32_t slot = p.indices[std::int64_t{b.request} * p.index_width + key];
    if (slot < 0) return nullptr;
    const auto page = static_cast<std::int32_t>(p.page_size(static_cast<std::uint32_t>(slot)));
    if (page >= p.pages) return nullptr;
    const std::int32_t row = slot - page * static_cast<std::int32_t>(p.page_size.divisor);
    return p.keys + page * p.page_stride + row * p.token_bytes;
  }

  /// Copies the rows of 32 keys. from: this lane's row. there: which of them are keys.
  __device__ void copy(std::uint32_t to, int first, const std::byte* from,
                       std::uint32_t there) const {
    const int chunk = lane & 7;
    LATHE_ROLLED
    for (int i = 0; i < 32; i += 4) {
      const int row = i + lane / 8;
      const auto at = reinterpret_cast<const std::byte*>(
          shuffle(reinterpret_cast<unsigned long long>(from), static_cast<std::uint32_t>(row)));
      if (!(there >> row & 1)) continue;
      LATHE_UNROLL
      for (int box = 0; box < N::kBoxes; ++box) {
        const bool any = in_head<N>(p, 8 * box + chunk);
        copy_async(
            swizzled(to + static_cast<std::uint32_t>(box * N::kBoxTileBytes), first + row, chunk),
            any ? at + (8 * box + chunk) * 16 : at, any);
      }
    }
  }

  __device__ void run(std::int32_t worker) const {
    GqaSegments segments(p, worker);
    GqaSegment item;
    GqaStage<N> stage;
    while (segments.next(item)) {
      std::int32_t first = item.first_key<N::kTile>() + lane;
      const std::byte* next[kWords];
      LATHE_UNROLL
      for (int w = 0; w < kWords; ++w) next[w] = find(item.block, first + 32 * w);
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t) {
        const std::byte* from[kWords];
        // Look up the next tile's rows while this tile waits for its stage.
        first += N::kTile;
        LATHE_UNROLL
        for (int w = 0; w < kWords; ++w) {
          from[w] = next[w];
          next[w] = find(item.block, first + 32 * w);
        }
        barrier_wait(ring.empty_at(stage.index), stage.parity ^ 1);
        LATHE_UNROLL
        for (int w = 0; w < kWords; ++w) {
          const std::uint32_t there = warp_ballot(from[w] != nullptr);
          if (lane == 0) {
            store_shared_u32(ring.mask_at(stage) + static_cast<std::uint32_t>(4 * w), there);
          }
          copy(ring.keys(stage.index), 32 * w, from[w], there);
        }
        barrier_arrive_after_copies(ring.full_at(stage.index));
        if (lane == 0) barrier_arrive(ring.full_at(stage.index));
        stage.advance();
      }
    }
  }
};

/// The producer warp of a kernel. key_map, value_map: tensor maps.
template <class N>
__device__ inline void produce_tiles(const GqaParams& p, const GqaRing<N>& ring,
                                     const void* key_map, const void* value_map,
                                     std::int32_t worker) {
  if constexpr (N::kListsRows) {
    if (lists_rows<N>(p)) return GqaRowProducer<N>(p, ring).run(worker);
  }
  GqaPageProducer<N>(p, ring, key_map, value_map).run(worker);
}

}  // namespace lathe::cuda
