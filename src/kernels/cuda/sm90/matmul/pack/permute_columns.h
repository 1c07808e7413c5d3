// Copies x with its columns in the order of a weight's (WeightView::columns, GPTQ's act order).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

struct PermuteColumns {
  const std::uint16_t* x = nullptr;       // [rows, cols] bf16
  const std::int32_t* columns = nullptr;  // [cols] a permutation
  std::uint16_t* out = nullptr;           // [rows, cols]: column k is column columns[k] of x
  std::int64_t rows = 0, cols = 0;        // cols: a multiple of 8
  std::int64_t x_stride = 0,
               out_stride = 0;  // of out: a multiple of 8, and out aligned to 16 bytes
};
cudaError_t launch_permute_columns(const PermuteColumns& p, cudaStream_t stream);

}  // namespace lathe::cuda
