// Queries and keys of latent attention in one pass: norm of the latent, RoPE, cache write, and
// queries to bf16.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/rowwise/stored_part.h"

namespace lathe::cuda {

inline constexpr int kLatentColumns = 512, kRotaryColumns = 64;

/// Alignment: rows of q and k, norms and cache rows to 16 bytes, heads of the outputs to 8. Rows
/// with a position outside the table or a slot outside the pages write nothing to the cache, and
/// their queries become zeros.
struct LatentRowsParams {
  const float* q = nullptr;      // [rows, heads * (qk_nope + kRotaryColumns)]
  const float* k = nullptr;      // [rows, kLatentColumns + kRotaryColumns]
  const float* norm = nullptr;   // [kLatentColumns]
  const float* table = nullptr;  // [table_positions, kRotaryColumns]: cosines, then sines
  const std::int32_t* positions = nullptr;  // [rows]
  const std::int32_t* slots = nullptr;      // [rows]
  // Outputs in bf16: the columns of q's heads that do not rotate, and those that do.
  std::uint16_t* nope_out = nullptr;  // head h of row r at r * nope_stride + h * nope_head
  std::uint16_t* rope_out = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, nope_stride = 0, rope_stride = 0;
  std::int32_t nope_head = 0, rope_head = 0;
  std::int64_t rows = 0;
  std::int32_t qk_nope = 0;  // a multiple of 4, at most 256
  std::int32_t heads = 1;
  FastDiv groups_of_row = {};  // warps per row of q; launch sets it
  PagesParams pages;
  RunKind kind = RunKind::bf16;  // of the latent; or e4m3_tensor, or e4m3_f32 in tiles of 128
  StoredPart latent, rope;
  std::int64_t scale_start = 0;  // of tiles, as StoredPart::start
  std::uint32_t scale_step = 0;
  bool raw_scale = false;                // RunParams::raw_scale
  unsigned long long* counts = nullptr;  // as EncodeParams::counts, for e4m3_tensor
  std::uint32_t table_positions = 0;
  float eps = 0;
  bool interleaved = false;  // false: the halves are paired
};

cudaError_t launch_latent_rows(const LatentRowsParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
