// Norms with a block per row and head. Thread i of kNormThreads adds elements i, i + kNormThreads,
// ... in this order, then lanes and warps are added as a tree, so the order of a row's sum depends
// on its width alone.
#pragma once

#include "kernels/cuda/common/block_sum.cuh"
#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

inline constexpr int kNormThreads = 128;

/// Loads that a thread issues before it uses the first result.
inline constexpr int kNormBatch = 8;
struct NormBatch {
  float v[kNormBatch];
};
/// Elements `at`, at + kNormThreads, ... up to `left` of them; the rest are `other`.
__device__ __forceinline__ NormBatch load_batch(const std::byte* data, DType dtype, std::int64_t at,
                                                std::int64_t left, float other) {
  NormBatch out;
  if (dtype == DType::f32) {
    const float* from = reinterpret_cast<const float*>(data) + at;
    LATHE_UNROLL
    for (int j = 0; j < kNormBatch; ++j) {
      out.v[j] = j * kNormThreads < left ? from[j * kNormThreads] : other;
    }
  } else {
    const auto* from = reinterpret_cast<const bf16*>(data) + at;
    LATHE_UNROLL
    for (int j = 0; j < kNormBatch; ++j) {
      out.v[j] = j * kNormThreads < left ? to_f32(from[j * kNormThreads]) : other;
    }
  }
  return out;
}

static __global__ void __launch_bounds__(kNormThreads)
    norm_kernel(const __grid_constant__ NormParams p) {
  __shared__ float room[kNormThreads / 32];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t first = blockIdx.y * p.cols;
  float mean = 0;
  const auto cols = static_cast<float>(p.cols);
  const std::int64_t start = row * p.x.stride + first;
  constexpr std::int64_t kStep = kNormBatch * kNormThreads;
  if (p.bias != nullptr) {
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < p.cols; i += kStep) {
      for (const float v : load_batch(p.x.data, p.x.dtype, start + i, p.cols - i, 0).v) sum += v;
    }
    mean = block_sum<kNormThreads>(sum, room) / cols;
  }
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < p.cols; i += kStep) {
    for (const float v : load_batch(p.x.data, p.x.dtype, start + i, p.cols - i, mean).v) {
      squares += (v - mean) * (v - mean);
    }
  }
  const float factor = 1 / sqrtf(block_sum<kNormThreads>(squares, room) / cols + p.eps);
  const DeviceRows before{p.out.data, p.out.stride, p.out.dtype};
  for (std::int64_t i = threadIdx.x; i < p.cols; i += kStep) {
    const NormBatch x = load_batch(p.x.data, p.x.dtype, start + i, p.cols - i, 0);
    NormBatch w = {};
    if (p.weight != nullptr) {
      const auto* weight = reinterpret_cast<const std::byte*>(p.weight);
      w = load_batch(weight, DType::f32, i, p.cols - i, 0);
    }
    LATHE_UNROLL
    for (int j = 0; j < kNormBatch; ++j) {
      const std::int64_t col = i + j * kNormThreads;
      if (col >= p.cols) break;
      float v = (x.v[j] - mean) * factor;
      if (p.weight != nullptr) v *= w.v[j];
      if (p.bias != nullptr) v += p.bias[col];
      if (p.add) v += load_element(before, row, first + col);
      store_element(p.out, row, first + col, v);
    }
  }
}

}  // namespace lathe::cuda
