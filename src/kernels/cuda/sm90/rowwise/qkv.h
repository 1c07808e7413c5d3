// Queries, keys and values of grouped-query attention in one pass: norm and RoPE, then queries to
// bf16, keys and values to the cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/rowwise/stored_part.h"

namespace lathe::cuda {

/// Heads of 64, 128 or 256 columns, all of which rotate. Alignment: rows of q, kv and q_out, norms,
/// and a token's keys and values to 16 bytes, e4m3 codes to 8.
struct QkvParams {
  const float* q = nullptr;       // [rows, heads * cols]
  const float* kv = nullptr;      // [rows, (kv_heads + value_heads) * cols]
  const float* q_norm = nullptr;  // [cols]; null: 1
  const float* k_norm = nullptr;
  const float* table = nullptr;             // [table_positions, cols]: cosines, then sines
  const std::int32_t* positions = nullptr;  // [rows]; outside the table: not rotated
  const std::int32_t* slots = nullptr;      // [rows]; outside the pages: not written
  std::uint16_t* q_out = nullptr;           // bf16 [rows, heads * cols]
  std::int64_t q_stride = 0, kv_stride = 0, q_out_stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 1, kv_heads = 1, value_heads = 1;  // kv_heads 0: nothing is written
  std::int32_t cols = 0;
  FastDiv groups_of_row = {};  // warps per row; launch sets it
  PagesParams pages;
  StoredPart keys, values;
  unsigned long long* counts = nullptr;  // as EncodeParams::counts, if codes are stored
  std::uint32_t table_positions = 0;
  float eps = 0;
  bool norms = false;
  bool interleaved = false;  // false: the halves are paired
  bool codes = false;        // stores e4m3; false: bf16
};

cudaError_t launch_qkv(const QkvParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
