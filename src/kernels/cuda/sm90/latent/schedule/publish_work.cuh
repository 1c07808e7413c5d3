// Queries and facts of a block's items, brought and told by one warp.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_queries.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_item.cuh"

namespace lathe::cuda {

/// One warp: queries, by `map`'s boxes or its lanes, and facts of items. `facts`: two places; an item's are kept
/// until the one after the next is begun. q_full takes kQueryArrivals. each_tile(n) is called for all tiles of an
/// item once its queries are under way.
inline constexpr int kQueryArrivals = 33;
template <class Format, int kTileLines, int kGroups, class EachTile>
__device__ inline void tell_items(const LatentParams& p, const void* map, std::uint32_t q,
                                  std::uint32_t facts, std::uint32_t q_full, std::uint32_t q_empty,
                                  std::int32_t worker, std::int32_t tile, int lane,
                                  const EachTile& each_tile) {
  constexpr int kDims = kDimTiles<Format>;
  const bool boxes = query_box_lines<kTileLines, kDims>(p) > 0;
  const std::int32_t before = rows_before<kTileLines>(p, tile);
  LatentItems items(p, worker);
  bool live = items.take<kTileLines>(p, tile);
  std::int32_t first = 0;  // tile of the item
  LATHE_ROLLED
  for (unsigned number = 0;; ++number) {
    barrier_wait(q_empty, (number & 1) ^ 1);
    const int tiles = live ? LatentItemFacts::tiles_of<kGroups>(items.item) : 0;
    if (elected()) {
      const LatentUnitPlace& u = items.unit;
      LatentItemFacts{tiles,
                      p.dense ? u.limit - items.item.first + before : INT32_MAX / 2,
                      u.row,
                      u.lines,
                      items.split ? items.number : -1,
                      tile * kTileLines,
                      first}
          .store(facts + LatentItemFacts::kBytes * (number & 1));
      if (live && boxes) {
        barrier_expect(q_full, kTileLines * kDims * 128);
        copy_query_boxes<kTileLines, kDims>(p, map, items.unit, tile, q, q_full);
      } else {
        barrier_arrive(q_full);
      }
    }
    sync_warp();
    if (live && !boxes) copy_queries<kTileLines, kDims, 32>(p, items.unit, tile, q, lane);
    barrier_arrive_after_copies(q_full);
    if (!live) return;
    // The next one is looked up meanwhile.
    live = items.take<kTileLines>(p, tile);
    LATHE_ROLLED
    for (const std::int32_t end = first + tiles; first < end; ++first) {
      each_tile(static_cast<unsigned>(first));
    }
  }
}

}  // namespace lathe::cuda
