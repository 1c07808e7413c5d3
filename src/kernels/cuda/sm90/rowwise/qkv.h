// Queries, keys and values of grouped-query attention in one pass: norm and rotation, then queries
// to rows of bf16, keys and values to the cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/rowwise/stored_part.h"

namespace lathe::cuda {

/// Heads of 64, 128 or 256 columns that rotate as a whole. Rows of q, kv and q_out, norms, and keys
/// and values of a token lie at multiples of 16 bytes, codes of e4m3 at multiples of 8.
struct QkvParams {
  const float* q = nullptr;       // [rows, heads * cols]
  const float* kv = nullptr;      // [rows, (kv_heads + value_heads) * cols]
  const float* q_norm = nullptr;  // [cols], or null: 1
  const float* k_norm = nullptr;
  const float* table = nullptr;             // [table_positions, cols]: cosines, then sines
  const std::int32_t* positions = nullptr;  // [rows]; outside the table: not rotated
  const std::int32_t* slots = nullptr;      // [rows]; outside the pages: not written
  std::uint16_t* q_out = nullptr;           // bf16 [rows, heads * cols]
  std::int64_t q_stride = 0, kv_stride = 0, q_out_stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 1, kv_heads = 1, value_heads = 1;
  std::int32_t cols = 0;
  FastDiv heads_of_row;  // all of them
  PagesParams pages;
  StoredPart keys, values;
  unsigned long long* counts = nullptr;  // as EncodeParams::counts, where codes are stored
  std::uint32_t table_positions = 0;
  float eps = 0;
  bool norms = false;
  bool interleaved = false;  // else the halves are paired
  bool codes = false;        // e4m3 is stored, else bf16
};

cudaError_t launch_qkv(const QkvParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
