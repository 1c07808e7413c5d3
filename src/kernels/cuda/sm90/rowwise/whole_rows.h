// Queries and keys of latent attention whose values are whole keys (DeepSeek V4) in one pass: norm
// of keys and of each head of queries, RoPE, cache write, and queries to bf16.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/rowwise/stored_part.h"

namespace lathe::cuda {

/// Columns of a key and of a head of queries. The last kWholeRotary rotate.
inline constexpr int kWholeColumns = 512, kWholeRotary = 64;
inline constexpr int kWholeTile = 64;  // columns with one e4m3 scale

/// Alignment: rows of q, k and q_out, the norm and the cache's parts to 16 bytes, scales to 8. Rows
/// with a position outside the table or a slot outside the pages write nothing to the cache. The
/// queries of rows outside the table do not rotate.
struct WholeRowsParams {
  const float* q = nullptr;      // [rows, heads * kWholeColumns]
  const float* k = nullptr;      // [rows, kWholeColumns]
  const float* norm = nullptr;   // [kWholeColumns] of k; heads of q are normed without weight
  const float* table = nullptr;  // [table_positions, kWholeRotary]: cosines, then sines
  const std::int32_t* positions = nullptr;  // [rows]
  const std::int32_t* slots = nullptr;      // [rows]
  std::uint16_t* q_out = nullptr;           // [rows, heads * kWholeColumns] bf16
  std::int64_t q_stride = 0, k_stride = 0, q_out_stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 1;
  FastDiv groups_of_row = {};  // warps per row of q; launch sets it
  PagesParams pages;
  bool codes = false;  // `nope` in e4m3 with a scale word (RunParams::scale_word); else bf16
  StoredPart nope, rope;
  std::int64_t scale_start = 0;  // of scale words, as StoredPart::start
  std::uint32_t scale_step = 0;
  std::uint32_t table_positions = 0;
  float eps = 0;
  bool interleaved = false;  // false: the halves are paired
};

cudaError_t launch_whole_rows(const WholeRowsParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
