// One producer warp loads the queries of work items and publishes the items to the consumers.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_queries.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_item.cuh"

namespace lathe::cuda {

/// Run by one warp: loads queries by `map`'s boxes or by lanes, and writes the items' info. `info`:
/// two slots; an item's info is kept until the second next item begins. q_full counts
/// kQueryArrivals. each_tile(n) is called for every tile of an item once its queries are in flight.
inline constexpr int kQueryArrivals = 33;
template <class Format, int kBlockM, int kGroups, class EachTile>
__device__ inline void publish_work(const LatentParams& p, const void* map, std::uint32_t q,
                                    std::uint32_t info, std::uint32_t q_full, std::uint32_t q_empty,
                                    std::int32_t worker, std::int32_t tile, int lane,
                                    const EachTile& each_tile) {
  constexpr int kDims = kDimTiles<Format>;
  const bool boxes = query_box_rows<kBlockM, kDims>(p) > 0;
  const std::int32_t before = rows_before<kBlockM>(p, tile);
  LatentItems items(p, worker);
  bool live = items.take<kBlockM>(p, tile);
  std::int32_t first = 0;  // first tile of the item
  LATHE_ROLLED
  for (unsigned number = 0;; ++number) {
    barrier_wait(q_empty, (number & 1) ^ 1);
    const int tiles = live ? LatentWorkInfo::tiles_of<kGroups>(items.item) : 0;
    if (elected()) {
      const LatentWorkTile& u = items.work_tile;
      LatentWorkInfo{tiles,      p.dense ? u.limit - items.item.first + before : INT32_MAX / 2,
                     u.row,      u.m_rows,
                     items.part, tile * kBlockM,
                     first}
          .store(info + LatentWorkInfo::kBytes * (number & 1));
      if (live && boxes) {
        barrier_expect(q_full, kBlockM * kDims * 128);
        copy_query_boxes<kBlockM, kDims>(p, map, items.work_tile, tile, q, q_full);
      } else {
        barrier_arrive(q_full);
      }
    }
    sync_warp();
    if (live && !boxes) copy_queries<kBlockM, kDims, 32>(p, items.work_tile, tile, q, lane);
    barrier_arrive_after_copies(q_full);
    if (!live) return;
    // Look up the next item while they load.
    live = items.take<kBlockM>(p, tile);
    LATHE_ROLLED
    for (const std::int32_t end = first + tiles; first < end; ++first) {
      each_tile(static_cast<unsigned>(first));
    }
  }
}

}  // namespace lathe::cuda
