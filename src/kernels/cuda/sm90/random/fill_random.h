// Fills a weight matrix with random numbers (kernels/random_weights.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace lathe::cuda {

struct FillRandomParams {
  std::byte* to = nullptr;   // [count] elements; count is even for e2m1 and u4
  DType dtype = DType::f32;  // f32, bf16, e4m3, e2m1 or u4
  std::int64_t count = 0;
  // The index that the first element has in its whole matrix, columns, and elements between rows
  // there. stride == cols: rows follow one another; else all three are multiples of 4.
  std::int64_t first = 0, cols = 0, stride = 0;
  std::uint64_t seed = 0;
  float reach = 0;  // for f32 and bf16
};

cudaError_t launch_fill_random(const FillRandomParams& params, cudaStream_t stream);

}  // namespace lathe::cuda
