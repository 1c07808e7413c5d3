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
      const std::int64_t first = blocks == 0 ? r.row : std::int64_t{r.row / 128} * p.chunks;
      rows[i] = scales == nullptr ? nullptr : scales + w.group * p.scale_group + first;
    }
  }
  __device__ float at(int i, std::int32_t block) const {
    return rows[i] == nullptr ? 1.f : rows[i][block & blocks];
  }
};

/// Scales of MXFP4 weights, one per 32 elements of a row.
struct MatmulMxScales {
  const std::uint8_t* rows[2];
  std::int32_t blocks;  // per row

  __device__ MatmulMxScales(const MatmulParams& p, const MatmulWork& w, std::int32_t row)
      : blocks(p.mx_blocks) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const MatmulRow r = matmul_row(p, w, row, i);
      rows[i] = static_cast<const std::uint8_t*>(p.weights[r.weight].scales) +
                w.group * p.scale_group + std::int64_t{r.row} * blocks;
    }
  }
  /// Scale codes of the four blocks of chunk `chunk`, for each row, the first in the low byte; 0
  /// for blocks past the end of the row.
  __device__ uint2 of_chunk(std::int32_t chunk) const {
    if (blocks % 4 == 0) return {four(rows[0], chunk), four(rows[1], chunk)};
    return {bytes(rows[0], 4 * chunk), bytes(rows[1], 4 * chunk)};
  }
  /// Code i of `four` as bf16 in both halves. A code is a bf16 exponent; code 0 gives 0.
  static __device__ std::uint32_t as_bf16x2(std::uint32_t four, int i) {
    return permute_bytes(four, 0, static_cast<std::uint32_t>(0x0404 + i * 0x1010)) >> 1;
  }

 private:
  __device__ static std::uint32_t four(const std::uint8_t* row, std::int32_t chunk) {
    return reinterpret_cast<const std::uint32_t*>(row)[chunk];
  }
  __device__ std::uint32_t bytes(const std::uint8_t* row, std::int32_t block) const {
    std::uint32_t codes = 0;
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (block + i < blocks) codes |= std::uint32_t{row[block + i]} << (8 * i);
    }
    return codes;
  }
};

}  // namespace lathe::cuda
