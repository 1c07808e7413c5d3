// Norms: a block per row and head. Thread i of kNormThreads adds elements i, i + kNormThreads, ...
// in this order, then lanes and warps are added as a tree, so the order of a row's sum depends on
// its width alone.
#pragma once

#include "kernels/cuda/common/block_sum.cuh"
#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

inline constexpr int kNormThreads = 128;

static __global__ void __launch_bounds__(kNormThreads)
    norm_kernel(const __grid_constant__ NormParams p) {
  __shared__ float room[kNormThreads / 32];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t first = blockIdx.y * p.cols;
  float mean = 0;
  const auto cols = static_cast<float>(p.cols);
  if (p.bias != nullptr) {
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < p.cols; i += kNormThreads) {
      sum += load_element(p.x, row, first + i);
    }
    mean = block_sum<kNormThreads>(sum, room) / cols;
  }
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < p.cols; i += kNormThreads) {
    const float v = load_element(p.x, row, first + i) - mean;
    squares += v * v;
  }
  const float factor = 1 / sqrtf(block_sum<kNormThreads>(squares, room) / cols + p.eps);
  const DeviceRows before{p.out.data, p.out.stride, p.out.dtype};
  for (std::int64_t i = threadIdx.x; i < p.cols; i += kNormThreads) {
    float v = (load_element(p.x, row, first + i) - mean) * factor;
    if (p.weight != nullptr) v *= p.weight[i];
    if (p.bias != nullptr) v += p.bias[i];
    if (p.add) v += load_element(before, row, first + i);
    store_element(p.out, row, first + i, v);
  }
}

}  // namespace lathe::cuda
