// Quantizes activations to e4m3, for products with e4m3 weights.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/result.h"
#include "base/rows_view.h"

namespace lathe::cuda {

inline constexpr std::int64_t kQuantizeBlock = 128;  // neighbours of a row that share a scale

struct QuantizeParams {
  const void* x;  // [rows, cols] f32 or bf16
  std::int64_t rows, cols, x_stride, blocks, scale_stride;
  std::uint8_t* codes;  // [rows, cols]
  float* scales;        // [blocks, scale_stride]
  std::int32_t x_bf16, power_of_two;
};
cudaError_t launch_quantize_rows(const QuantizeParams& p, cudaStream_t stream);

/// codes[r, c] of scales[c / 128, r]: scale = amax / 448 of the 128 (1 where all are 0), or that
/// rounded up to a power of two; code = x / scale, rounded to nearest even. Bits are the CPU's.
/// Shapes: x [m, k] f32 or bf16 with k a multiple of 4; codes [m, k] at a multiple of 4 bytes;
/// scales [ceil(k / 128), scale_stride], scale_stride >= m. The kernel may start early, as
/// matmul_on_device()'s. Errors: dtypes and shapes; CUDA's.
Result<void> quantize_rows_on_device(const RowsView& x, std::uint8_t* codes, float* scales,
                                     std::int64_t scale_stride, bool power_of_two,
                                     cudaStream_t stream);

}  // namespace lathe::cuda
