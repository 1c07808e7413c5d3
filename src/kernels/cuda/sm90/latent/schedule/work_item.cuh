// What consumers need to know of a work item. Published through shared memory with its queries.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

struct LatentWorkInfo {
  static constexpr std::uint32_t kBytes = 32;

  std::int32_t tiles = 0;  // of keys; 0: no more items
  // Keys of the item that the work tile's first row sees; with small M blocks, that the block's
  // first row sees.
  std::int32_t limit = 0;
  std::int32_t row = 0;     // of q, for the work tile's first row
  std::int32_t m_rows = 0;  // of the work tile
  std::int32_t number = 0;  // index of the partial; -1: the work tile is not split
  std::int32_t first = 0;   // first M row of this block
  std::int32_t tile = 0;    // number of its first tile of keys, where tiles are numbered

  /// The tiles of an item, rounded up to the same number for each of kGroups consumers.
  template <int kGroups>
  __device__ static int tiles_of(const LatentItem& item) {
    constexpr int kKeys = kGroups * kLatentTile;
    return (item.count + kKeys - 1) / kKeys * kGroups;
  }
  __device__ static LatentWorkInfo load(std::uint32_t at) {
    const uint4 v = load_shared_u128(at), w = load_shared_u128(at + 16);
    const auto i32 = [](std::uint32_t x) { return static_cast<std::int32_t>(x); };
    return {i32(v.x), i32(v.y), i32(v.z), i32(v.w), i32(w.x), i32(w.y), i32(w.z)};
  }
  __device__ static std::int32_t load_limit(std::uint32_t at) {
    return static_cast<std::int32_t>(load_shared_u32(at + 4));
  }
  __device__ static unsigned load_tile(std::uint32_t at) { return load_shared_u32(at + 24); }
  __device__ void store(std::uint32_t at) const {
    const auto u32 = [](std::int32_t x) { return static_cast<std::uint32_t>(x); };
    store_shared(at, u32(tiles), u32(limit), u32(row), u32(m_rows));
    store_shared(at + 16, u32(number), u32(first), u32(tile), 0);
  }
};

}  // namespace lathe::cuda
