// RMS norms of few rows of f32, as in a decode step: a block or eight of them a row, with the bits
// of norm_kernel (norm.cuh).
#pragma once

#include "kernels/cuda/common/norm_after.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

/// Precondition: no bias, no sum; whole words of columns in x, weight and out.
template <int kBlocks>
static __global__ void __launch_bounds__(kNormAfterThreads<kBlocks>)
    short_norm_kernel(const __grid_constant__ NormParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  let_next_begin();
  const NormAfter norm{p.weight, p.out, p.eps, p.codes};
  NormAfterRow<kBlocks> after(norm, p.cols, shared_bytes);
  wait_for_previous();
  const std::byte* const first = p.x.data + 4 * after.row() * p.x.stride;
  LATHE_UNROLL
  for (int i = 0; i < after.kWords; ++i) {
    after.put(i, after.has(i) ? reinterpret_cast<const float4*>(first)[after.word(i)] : float4{});
  }
  after.run();
}

}  // namespace lathe::cuda
