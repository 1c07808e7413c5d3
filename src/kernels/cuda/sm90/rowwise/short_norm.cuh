// RMS norms of few rows of f32, as in a decode step: a block a row, with the bits of norm_kernel
// (norm.cuh).
#pragma once

#include "kernels/cuda/common/norm_after.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

/// Grid: rows. Precondition: no bias, no sum; whole words of columns in x, weight and out.
static __global__ void __launch_bounds__(kNormAfterThreads)
    short_norm_kernel(const __grid_constant__ NormParams p) {
  __shared__ NormedRow x;
  let_next_begin();
  const NormAfter norm{p.weight, p.out, p.eps, p.codes};
  const NormAfterRow after(norm, p.cols);
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const auto* const from = reinterpret_cast<const float4*>(p.x.data + 4 * row * p.x.stride);
  constexpr int kWords = kNormAfterColumns / 4 / kNormAfterThreads;
  LATHE_UNROLL
  for (int i = 0; i < kWords; ++i) {
    const auto word = i * kNormAfterThreads + static_cast<std::int32_t>(threadIdx.x);
    if (word < p.cols / 4) x.words[word] = from[word];
  }
  after.run(row, p.cols, x);
}

}  // namespace lathe::cuda
