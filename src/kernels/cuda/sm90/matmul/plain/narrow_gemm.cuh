// The narrow GEMM: a block multiplies kNarrowRows rows by a slice of the weight, a quarter of the
// slice per warp. A lane has 4 rows and every eighth output, so 8 loads of 16 bytes feed 64
// multiply-adds. Slices are short, so that a step of few rows still has as many blocks as the GPU
// has SMs, and a lane waits for memory only twice.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/plain/narrow_lanes.cuh"

namespace lathe::cuda {

inline constexpr int kNarrowThreads = 128, kNarrowWarps = kNarrowThreads / 32;
inline constexpr int kNarrowRows = 16;
inline constexpr int kNarrowLaneRows = 4;
inline constexpr int kNarrowSumOutputs = 32;
inline constexpr int kNarrowSumThreads = kNarrowSumOutputs * kNarrowSumParts;

static __global__ void __launch_bounds__(kNarrowThreads)
    narrow_gemm_kernel(const __grid_constant__ NarrowGemm p) {
  __shared__ float sums[kNarrowWarps][kNarrowRows][kNarrowOutputs];
  let_next_begin();
  wait_for_previous();
  const auto warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int group = lane % kNarrowGroups, lane_row = lane / kNarrowGroups * kNarrowLaneRows;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kNarrowRows;
  constexpr int kPart = kNarrowSlice / kNarrowWarps;  // columns per warp
  const std::int64_t begin = std::int64_t{blockIdx.x} * kNarrowSlice + warp * kPart;
  const std::int64_t end = begin + kPart < p.cols ? begin + kPart : p.cols;
  // Lanes past the last row or output read the last one; their sums are dropped.
  const float* x[kNarrowLaneRows];
  const float* w[kNarrowLaneOutputs];
  LATHE_UNROLL
  for (int i = 0; i < kNarrowLaneRows; ++i) {
    const std::int64_t row = first_row + lane_row + i;
    x[i] = p.x + (row < p.rows ? row : p.rows - 1) * p.x_stride;
  }
  LATHE_UNROLL
  for (int j = 0; j < kNarrowLaneOutputs; ++j) {
    const int output = group + j * kNarrowGroups;
    w[j] = p.w + std::int64_t{output < p.outputs ? output : p.outputs - 1} * p.cols;
  }
  float acc[kNarrowLaneRows][kNarrowLaneOutputs] = {};
  LATHE_UNROLL_BY(4)
  for (std::int64_t k = begin; k < end; k += 4) {
    float4 v[kNarrowLaneRows], u[kNarrowLaneOutputs];
    LATHE_UNROLL
    for (int i = 0; i < kNarrowLaneRows; ++i) v[i] = *reinterpret_cast<const float4*>(x[i] + k);
    LATHE_UNROLL
    for (int j = 0; j < kNarrowLaneOutputs; ++j) u[j] = *reinterpret_cast<const float4*>(w[j] + k);
    multiply_words(v, u, acc);
  }
  LATHE_UNROLL
  for (int i = 0; i < kNarrowLaneRows; ++i) {
    LATHE_UNROLL
    for (int j = 0; j < kNarrowLaneOutputs; ++j) {
      sums[warp][lane_row + i][group + j * kNarrowGroups] = acc[i][j];
    }
  }
  sync_block();
  for (auto at = static_cast<int>(threadIdx.x); at < kNarrowRows * kNarrowOutputs;
       at += kNarrowThreads) {
    const int output = at % kNarrowOutputs;
    const std::int64_t row = first_row + at / kNarrowOutputs;
    if (output >= p.outputs || row >= p.rows) continue;
    float sum = 0;
    LATHE_UNROLL
    for (int i = 0; i < kNarrowWarps; ++i) sum += sums[i][at / kNarrowOutputs][output];
    p.parts[(blockIdx.x * p.rows + row) * p.outputs + output] = sum;
  }
}

// A block adds up kNarrowSumOutputs outputs: each warp every eighth slice, then the warps' sums. So
// all loads of a thread are in flight at once.
static __global__ void __launch_bounds__(kNarrowSumThreads)
    narrow_sum_kernel(const __grid_constant__ NarrowGemm p, std::int64_t slices) {
  __shared__ float sums[kNarrowSumParts][kNarrowSumOutputs];
  let_next_begin();
  wait_for_previous();
  const auto part = static_cast<int>(threadIdx.x / kNarrowSumOutputs);
  const auto lane = static_cast<int>(threadIdx.x % kNarrowSumOutputs);
  const std::int64_t at = std::int64_t{blockIdx.x} * kNarrowSumOutputs + lane;
  const std::int64_t all = p.rows * p.outputs;
  float sum = 0;
  if (at < all) sum = SlicesOfPart(p.parts + at, all, slices, part).sum();
  sums[part][lane] = sum;
  sync_block();
  if (part > 0 || at >= all) return;
  p.out[at / p.outputs * p.out_stride + at % p.outputs] = sum_of_parts(sums, lane);
}

}  // namespace lathe::cuda
