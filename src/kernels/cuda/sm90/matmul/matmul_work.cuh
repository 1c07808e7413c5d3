// Enumerates the work tiles of a product, in the order in which clusters take them.
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_config.cuh"

namespace lathe::cuda {

/// Token tiles whose work tiles are neighbours, so that both operands of what runs at a time stay
/// in L2.
inline constexpr std::int32_t kMatmulRaster = 8;

/// A block's share of a work tile.
struct MatmulWork {
  std::int32_t weight;  // of the launch
  std::int32_t row;     // of the weight, first of the tile
  std::int32_t token;   // first of the tile
  std::int32_t end;     // of the tokens that are the tile's to write
  std::int32_t group;
};

/// Lists how many token tiles lie ahead of each group, by a warp: offsets come from the launch
/// ahead.
template <class T>
__device__ void list_groups(const MatmulParams& p, const MatmulShared<T>& s, int lane) {
  std::int32_t before = 0;
  for (std::int32_t first = 0; first < p.groups; first += 32) {
    const std::int32_t g = first + lane;
    std::int32_t tiles = 0;
    if (g < p.groups) {
      const std::int32_t tokens = p.offsets == nullptr ? p.m : p.offsets[g + 1] - p.offsets[g];
      tiles = (tokens + T::kTokens - 1) / T::kTokens;
    }
    std::int32_t sum = tiles;
    for (int d = 1; d < 32; d *= 2) {
      const std::int32_t other = shuffle_up(sum, d);
      if (lane >= d) sum += other;
    }
    if (g < p.groups) {
      store_shared_u32(s.tiles_before(g), static_cast<std::uint32_t>(before + sum - tiles));
    }
    before += shuffle(sum, 31);
  }
  if (lane == 0) store_shared_u32(s.tiles_before(p.groups), static_cast<std::uint32_t>(before));
}

/// A launch's work tiles as a block walks them: those of its cluster's number plus a multiple of
/// the clusters.
template <class T>
struct MatmulWorkList {
  const MatmulParams& p;
  const MatmulShared<T>& s;
  std::int32_t rank, cluster_blocks, item, items;

  __device__ MatmulWorkList(const MatmulParams& params, const MatmulShared<T>& shared)
      : p(params), s(shared) {
    cluster_blocks = T::kPair ? 2 : p.split;
    rank = static_cast<std::int32_t>(blockIdx.x) % cluster_blocks;
    item = static_cast<std::int32_t>(blockIdx.x) / cluster_blocks;
    items = columns() * (T::kGrouped ? tiles_before(p.groups) : p.token_tiles);
  }
  __device__ std::int32_t tiles_before(std::int32_t group) const {
    return static_cast<std::int32_t>(load_shared_u32(s.tiles_before(group)));
  }
  /// Weight tiles, or pairs of them.
  __device__ std::int32_t columns() const { return T::kPair ? (p.tiles + 1) / 2 : p.tiles; }
  __device__ bool more() const { return item < items; }
  __device__ void next() { item += static_cast<std::int32_t>(gridDim.x) / cluster_blocks; }
  __device__ MatmulWork work() const {
    if constexpr (T::kGrouped) return grouped_work();
    const std::int32_t group = item / (columns() * kMatmulRaster);
    const std::int32_t first = group * kMatmulRaster;
    const std::int32_t width =
        p.token_tiles - first < kMatmulRaster ? p.token_tiles - first : kMatmulRaster;
    const std::int32_t in_group = item - first * columns();
    const std::int32_t column = in_group / width;
    // A pair's second tile may be none: its rows lie beyond the last weight's.
    const std::int32_t tile = T::kPair ? 2 * column + rank : column;
    std::int32_t weight = 0;
    while (weight + 1 < p.weight_count && tile >= p.weights[weight + 1].first_tile) ++weight;
    return {weight, (tile - p.weights[weight].first_tile) * p.tile_rows,
            (first + in_group - column * width) * T::kTokens, p.m, 0};
  }
  /// A group's work tiles are neighbours, and those that read the same weights.
  __device__ MatmulWork grouped_work() const {
    const std::int32_t tile = item / columns();
    std::int32_t group = 0;
    for (std::int32_t step = kMatmulGroups; step > 0; step /= 2) {
      if (group + step < p.groups && tiles_before(group + step) <= tile) group += step;
    }
    const std::int32_t first = tiles_before(group);
    const std::int32_t width = tiles_before(group + 1) - first;
    const std::int32_t in_group = item - first * columns();
    const std::int32_t column = in_group / width;
    const std::int32_t begin = p.offsets == nullptr ? 0 : p.offsets[group];
    return {0, column * p.tile_rows, begin + (in_group - column * width) * T::kTokens,
            p.offsets == nullptr ? p.m : p.offsets[group + 1], group};
  }
};

}  // namespace lathe::cuda
