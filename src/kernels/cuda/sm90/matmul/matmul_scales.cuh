// Weight scales as a consumer thread reads them, for its two rows (matmul_row()).
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

/// Scales of e4m3 weights, one per 128 x 128 block or one per row.
struct MatmulFactors {
  const float* rows[2];  // null: 1
  std::int32_t blocks;   // a mask of block numbers: 0 if all blocks of a row share a scale

  __device__ MatmulFactors(const MatmulParams& p, const MatmulWork& w, std::int32_t row)
      : blocks(p.weights[w.weight].scale_rows != 0 ? 0 : -1) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const MatmulRow r = matmul_row(p, w, row, i);
      const float* scales = static_cast<const float*>(p.weights[r.weight].scales);
      const std::int64_t first =
          blocks == 0 ? r.row : std::int64_t{r.row / 128} * p.weights[r.weight].scale_blocks;
      rows[i] = scales == nullptr ? nullptr : scales + w.group * p.scale_group + first;
    }
  }
  __device__ float at(int i, std::int32_t block) const { return of_block(i, block & blocks); }
  /// Begins to load the scales of chunks from `begin` on, one for each lane of a warp.
  __device__ void prefetch(std::int32_t begin, std::int32_t end, int lane) const {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (rows[i] == nullptr) return;
      for (std::int32_t chunk = begin + lane; chunk < end; chunk += 32) {
        prefetch_global(rows[i] + (chunk & blocks));
      }
    }
  }
  /// at(), if the scales are of blocks.
  __device__ float of_block(int i, std::int32_t block) const {
    return rows[i] == nullptr ? 1.f : rows[i][block];
  }
};

}  // namespace lathe::cuda
