// Queries of a tile of lines as boxes that the copy engine cuts from q.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_tile.cuh"

namespace lathe::cuda {

/// Lines of a box: heads of one row of q, [rows, heads, kDims * 64]. 0: the tiles of a unit's lines don't consist
/// of whole boxes, which have to begin at 8 rows of a swizzled tile, or rows of q lie over one another.
template <int kTileLines, int kDims>
__host__ __device__ inline int query_box_lines(const LatentParams& p) {
  if (p.q_rows == 0 || (p.q_rows > 1 && p.q_stride < std::int64_t{p.heads} * (kDims * 64)))
    return 0;
  if (!p.dense || p.heads % kTileLines == 0) return kTileLines;
  return kTileLines % p.heads == 0 && p.heads % 8 == 0 ? p.heads : 0;
}

/// By one thread: the queries of a unit's tile to [kDims] tiles of [kTileLines, 64] bf16, swizzled, whose bytes it
/// announces to `full`. Lines beyond the unit's are zeros: their heads lie beyond a row's, or their row beyond all.
template <int kTileLines, int kDims>
__device__ __forceinline__ void copy_query_boxes(const LatentParams& p, const void* map,
                                                 const LatentUnitPlace& u, std::int32_t tile,
                                                 std::uint32_t to, std::uint32_t full) {
  const int box = query_box_lines<kTileLines, kDims>(p);
  const std::uint64_t policy = cache_policy(p.passing);
  LATHE_ROLLED
  for (int first = 0; first < kTileLines; first += box) {
    const std::int32_t line = tile * kTileLines + first;
    const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(line)));
    const std::int32_t of_q = line < u.lines ? u.row + row : p.q_rows;
    LATHE_ROLLED
    for (int d = 0; d < kDims; ++d) {
      copy_box(to + static_cast<std::uint32_t>((d * kTileLines + first) * 128), map, d * 64,
               line - row * p.heads, of_q, full, policy);
    }
  }
}

}  // namespace lathe::cuda
