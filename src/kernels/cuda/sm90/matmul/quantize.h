// Quantizes activations to e4m3, for GEMMs with e4m3 weights.
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
  // Not null: row r of x is written to rows places[r * copies] to places[r * copies + copies - 1].
  const std::int32_t* places;  // [rows, copies]
  std::int32_t copies;
  std::int32_t own;  // with places, if not negative: row r is also written to row own + r
  // With places: [rows, copies] factors of the copies, which are then rounded to bf16, or null.
  const float* weights = nullptr;
};
cudaError_t launch_quantize_rows(const QuantizeParams& p, cudaStream_t stream);

/// Destination of quantized rows.
struct QuantizedRows {
  std::uint8_t* codes = nullptr;  // [rows, k], aligned to 4 bytes
  float* scales = nullptr;        // [ceil(k / 128), scale_stride]
  std::int64_t scale_stride = 0;  // >= rows
  // Not null: row r is written to rows places[r * copies] to places[r * copies + copies - 1].
  const std::int32_t* places = nullptr;  // [m, copies] on the device
  std::int32_t copies = 1;
  std::int64_t own = -1;  // with places, if not negative: row r is also written to row own + r
  // With places: [m, copies] factors of the copies, which are then rounded to bf16, or null.
  const float* weights = nullptr;
};

/// codes[r, c] has scale scales[c / 128, r] = amax / 448 over the 128 elements (1 if all are 0), or
/// that rounded up to a power of two. code = x / scale, rounded to nearest even, with the CPU's
/// bits. x: [m, k] f32 or bf16, k a multiple of 4. May start early, as matmul_on_device(). Errors:
/// dtypes and shapes; CUDA errors.
Result<void> quantize_rows_on_device(const RowsView& x, const QuantizedRows& out, bool power_of_two,
                                     cudaStream_t stream);

}  // namespace lathe::cuda
