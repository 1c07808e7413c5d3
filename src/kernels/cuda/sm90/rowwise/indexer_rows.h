// Queries and keys of the lightning indexer in one pass: LayerNorm, RoPE, quantization and cache
// write of keys; RoPE, Hadamard rotation and quantization of queries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/rowwise/stored_part.h"

namespace lathe::cuda {

inline constexpr int kIndexColumns = 128, kIndexRotary = 64;

/// Pages of codes with an f32 scale per row.
struct IndexPlaces {
  PagesParams pages;
  StoredPart codes, scales;
};

/// Alignment: rows of q and k, weights and the table to 16 bytes, codes and scales to 4. Keys with
/// a position outside the table or a slot outside the pages are not written; queries with such a
/// position are not rotated.
struct IndexerRowsParams {
  const float* q = nullptr;                      // [rows, heads * kIndexColumns]
  const float* k = nullptr;                      // [rows, kIndexColumns]; null: queries alone
  const float *norm = nullptr, *bias = nullptr;  // [kIndexColumns] of the keys' LayerNorm
  const float* table = nullptr;             // [table_positions, kIndexRotary]: cosines, then sines
  const std::int32_t* positions = nullptr;  // [rows]
  const std::int32_t* slots = nullptr;      // [rows] of keys
  std::int64_t q_stride = 0, k_stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 0;      // 0: keys alone
  FastDiv groups_of_row = {};  // warps per row of q; launch sets it
  IndexPlaces keys;
  IndexPlaces queries;  // a page per row, a token per head
  std::uint32_t table_positions = 0;
  float eps = 0;
  std::int32_t first = 0;    // column from which kIndexRotary ones rotate: 0 or 64
  bool interleaved = false;  // false: the halves are paired
  bool hadamard = false;     // of queries
  bool raw_scale = false;    // RunParams::raw_scale
};

cudaError_t launch_indexer_rows(const IndexerRowsParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
