// Products of f32 rows with an f32 weight of few rows and many columns, in f32: the hyper-
// connections' [24, 4 hidden], of which the plain product would give all to one block.
//
// Slices of kNarrowSlice columns are multiplied by a block each, and their sums are added in order:
// a row's bits depend on the row and the weight alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

inline constexpr int kNarrowOutputs = 32;  // at most
inline constexpr int kNarrowSlice = 128;

struct NarrowProduct {
  const float* x = nullptr;  // [rows, cols], rows at multiples of 16 bytes
  const float* w = nullptr;  // [outputs, cols]
  float* out = nullptr;      // [rows, outputs]
  float* parts = nullptr;    // narrow_parts() floats
  std::int64_t x_stride = 0, out_stride = 0;
  std::int64_t rows = 0, cols = 0;  // cols: a multiple of 4
  std::int32_t outputs = 0;
};

inline std::int64_t narrow_parts(const NarrowProduct& p) {
  return (p.cols + kNarrowSlice - 1) / kNarrowSlice * p.rows * p.outputs;
}

/// Two kernels, of which the second adds the slices.
cudaError_t launch_narrow_product(const NarrowProduct& p, cudaStream_t stream);

}  // namespace lathe::cuda
