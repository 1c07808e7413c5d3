// GEMM of f32 rows by an f32 weight with few outputs and many columns, in f32: the hyper
// connections' [24, 4 hidden], which the plain GEMM would compute in one block.
//
// Each block multiplies a slice of kNarrowSlice columns, and the slices' sums are added in order: a
// row's bits depend on the row and the weight alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/limits.h"

namespace lathe::cuda {

inline constexpr int kNarrowOutputs = 32;  // at most

inline constexpr int kNarrowSumParts = 8;  // sums of every eighth slice, which are then added

struct NarrowGemm {
  const float* x = nullptr;  // [rows, cols], rows aligned to 16 bytes
  const float* w = nullptr;  // [outputs, cols]
  float* out = nullptr;      // [rows, outputs]
  float* parts = nullptr;    // narrow_parts() floats
  std::int64_t x_stride = 0, out_stride = 0;
  std::int64_t rows = 0, cols = 0;  // cols: a multiple of 4
  std::int32_t outputs = 0;
};

LATHE_HD inline std::int64_t narrow_slices(const NarrowGemm& p) {
  return (p.cols + kNarrowSlice - 1) / kNarrowSlice;
}
inline std::int64_t narrow_parts(const NarrowGemm& p) {
  return narrow_slices(p) * p.rows * p.outputs;
}

/// parts [slices, rows, outputs] = the slices' sums.
cudaError_t launch_narrow_slices(const NarrowGemm& p, cudaStream_t stream);
/// out = the sums of parts.
cudaError_t launch_narrow_sum(const NarrowGemm& p, cudaStream_t stream);

}  // namespace lathe::cuda
