// Hadamard rotation of a vector in shared memory.
#pragma once

#include <cmath>

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Replaces x [n], which only this warp uses, by H x / sqrt(n), as layout/hadamard.h defines it and
/// with the same bits. n: a power of two.
__device__ inline void warp_hadamard(float* x, std::int32_t n) {
  for (std::int32_t half = 1; half < n; half *= 2) {
    sync_warp();
    for (auto i = static_cast<std::int32_t>(threadIdx.x % 32); i < n / 2; i += 32) {
      float* const at = x + i / half * 2 * half + i % half;
      const float a = at[0], b = at[half];
      at[0] = a + b;
      at[half] = a - b;
    }
  }
  sync_warp();
  const auto norm = static_cast<float>(1 / sqrt(static_cast<double>(n)));
  for (auto i = static_cast<std::int32_t>(threadIdx.x % 32); i < n; i += 32) x[i] *= norm;
  sync_warp();
}

}  // namespace lathe::cuda
