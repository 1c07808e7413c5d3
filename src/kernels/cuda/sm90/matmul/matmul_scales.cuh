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
  /// at(), if the scales are of blocks.
  __device__ float of_block(int i, std::int32_t block) const {
    return rows[i] == nullptr ? 1.f : rows[i][block];
  }
};

/// Scales of a warp's 16 rows in up to 64 chunks, a chunk for each lane. A load for each chunk
/// would be waited for, as the products of a chunk take less time.
struct MatmulWarpScales {
  static constexpr std::int32_t kChunks = 64;
  float v[2][2];            // [rows, rows + 8][chunks, chunks + 32]
  std::int32_t first = -1;  // chunk of lane 0
  bool of_rows = false;     // each lane has its own rows', for all chunks

  /// Rows of eight lanes begin at a multiple of 8, so they are in one block of 128.
  __device__ void load(const MatmulFactors& factors, std::int32_t begin, std::int32_t end,
                       int lane) {
    first = begin;
    of_rows = factors.blocks == 0;
    LATHE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const std::int32_t chunk = begin + 32 * h + lane;
      const std::int32_t at = chunk < end ? chunk : end - 1;
      v[0][h] = factors.at(0, at);
      v[1][h] = factors.at(1, at);
    }
  }
  __device__ float at(int i, std::int32_t chunk) const {
    const std::int32_t n = chunk - first;
    const float of_block = shuffle(n < 32 ? v[i][0] : v[i][1], static_cast<std::uint32_t>(n) % 32);
    return of_rows ? v[i][0] : of_block;
  }
};

}  // namespace lathe::cuda
