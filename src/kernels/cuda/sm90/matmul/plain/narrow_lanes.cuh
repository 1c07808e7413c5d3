// What a lane computes of a narrow GEMM (narrow_gemm.cuh), and the order in which slices are added.
// Kernels that share these functions give the same bits.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/plain/narrow_gemm.h"

namespace lathe::cuda {

inline constexpr int kNarrowLaneOutputs = 4, kNarrowGroups = 8;  // every eighth output

/// Four columns of kRows rows times kOutputs outputs.
template <int kRows, int kOutputs>
__device__ __forceinline__ void multiply_words(const float4 (&v)[kRows],
                                               const float4 (&u)[kOutputs],
                                               float (&acc)[kRows][kOutputs]) {
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LATHE_UNROLL
    for (int j = 0; j < kOutputs; ++j) {
      acc[i][j] += v[i].x * u[j].x;
      acc[i][j] += v[i].y * u[j].y;
      acc[i][j] += v[i].z * u[j].z;
      acc[i][j] += v[i].w * u[j].w;
    }
  }
}

/// The sum of slices part, part + kNarrowSumParts, ... of an output whose first is at `parts` and
/// whose next is `step` on. The first loads are in flight until sum().
class SlicesOfPart {
 public:
  __device__ __forceinline__ SlicesOfPart(const float* parts, std::int64_t step,
                                          std::int64_t slices, int part)
      : parts_(parts), step_(step), slices_(slices), part_(part) {
    LATHE_UNROLL
    for (int i = 0; i < kFirst; ++i) {
      const std::int64_t s = part + i * kNarrowSumParts;
      first_[i] = s < slices ? parts[s * step] : 0;
    }
  }
  __device__ __forceinline__ float sum() const {
    float sum = 0;
    LATHE_UNROLL
    for (const float v : first_) sum += v;
    for (std::int64_t s = part_ + kFirst * kNarrowSumParts; s < slices_; s += kNarrowSumParts) {
      sum += parts_[s * step_];
    }
    return sum;
  }

 private:
  static constexpr int kFirst = 16;  // all of a weight of 16384 columns
  const float* parts_;
  std::int64_t step_, slices_;
  int part_;
  float first_[kFirst];
};
__device__ __forceinline__ float sum_of_parts(const float (&sums)[kNarrowSumParts][kNarrowOutputs],
                                              int output) {
  float sum = 0;
  LATHE_UNROLL
  for (int i = 0; i < kNarrowSumParts; ++i) sum += sums[i][output];
  return sum;
}

}  // namespace lathe::cuda
