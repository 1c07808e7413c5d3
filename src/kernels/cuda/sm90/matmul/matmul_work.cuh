// The work tiles of a launch, in the order in which clusters take them.
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
};

/// A launch's work tiles as a block walks them: those of its cluster's number plus a multiple of
/// the clusters.
template <class T>
struct MatmulWorkList {
  const MatmulParams& p;
  std::int32_t rank, cluster_blocks, item, items;

  __device__ explicit MatmulWorkList(const MatmulParams& params) : p(params) {
    cluster_blocks = T::kPair ? 2 : p.split;
    rank = static_cast<std::int32_t>(blockIdx.x) % cluster_blocks;
    item = static_cast<std::int32_t>(blockIdx.x) / cluster_blocks;
    items = columns() * p.token_tiles;
  }
  /// Weight tiles, or pairs of them.
  __device__ std::int32_t columns() const { return T::kPair ? (p.tiles + 1) / 2 : p.tiles; }
  __device__ bool more() const { return item < items; }
  __device__ void next() { item += static_cast<std::int32_t>(gridDim.x) / cluster_blocks; }
  __device__ MatmulWork work() const {
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
            (first + in_group - column * width) * T::kTokens};
  }
};

}  // namespace lathe::cuda
