// Loads an M block's queries by TMA boxes.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_tile.cuh"

namespace lathe::cuda {

/// Rows of a TMA box: heads of one row of q, [rows, heads, kDims * 64]. 0: boxes can't be used, as
/// an M block is not made of whole boxes (which begin at multiples of 8 rows of a swizzled tile),
/// or rows of q overlap.
template <int kBlockM, int kDims>
__host__ __device__ inline int query_box_rows(const LatentParams& p) {
  if (p.q_rows == 0 || (p.q_rows > 1 && p.q_stride < std::int64_t{p.heads} * (kDims * 64)))
    return 0;
  if (!p.dense || p.heads % kBlockM == 0) return kBlockM;
  return kBlockM % p.heads == 0 && p.heads % 8 == 0 ? p.heads : 0;
}

/// One thread copies an M block's queries to [kDims] swizzled tiles of [kBlockM, 64] bf16 and
/// announces their bytes at `full`. M rows past the work tile's are zeros: they are beyond the
/// box's heads or beyond q's rows.
template <int kBlockM, int kDims>
__device__ __forceinline__ void copy_query_boxes(const LatentParams& p, const void* map,
                                                 const LatentWorkTile& u, std::int32_t tile,
                                                 std::uint32_t to, std::uint32_t full) {
  const int box = query_box_rows<kBlockM, kDims>(p);
  const std::uint64_t policy = cache_policy(p.passing);
  LATHE_ROLLED
  for (int first = 0; first < kBlockM; first += box) {
    const std::int32_t m_row = tile * kBlockM + first;
    const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
    const std::int32_t of_q = m_row < u.m_rows ? u.row + row : p.q_rows;
    LATHE_ROLLED
    for (int d = 0; d < kDims; ++d) {
      copy_box(to + static_cast<std::uint32_t>((d * kBlockM + first) * 128), map, d * 64,
               m_row - row * p.heads, of_q, full, policy);
    }
  }
}

}  // namespace lathe::cuda
