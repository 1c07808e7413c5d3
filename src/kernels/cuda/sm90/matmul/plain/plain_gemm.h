// GEMM in f32 of any weights by any rows: the fallback for shapes and formats that no fast kernel
// supports, and the reference for tests of those.
//
// Weights are widened exactly (codes times scale, in f32), products are f32, and a row's sum goes
// over k in ascending order: its bits depend on the row and the weight alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/device_rows.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// A WeightView of device memory, or the first of a stack.
struct PlainWeight {
  const std::byte* data = nullptr;
  const float* scales = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  bool scale_rows = false;
  GroupScales groups = {};
  const std::int32_t* columns = nullptr;
  // From one weight of the stack to the next.
  std::int64_t data_stride = 0;    // bytes
  std::int64_t scales_stride = 0;  // elements of scales
};
PlainWeight plain_weight(const WeightView& w);
/// The stack's weights must be contiguous, as CudaBackend::prepare() stores them.
PlainWeight plain_weight(const WeightStack& w);

/// out[m, n] = sum over k of x[m, k] w[n, k]. For several weights: `count` GEMMs, each with its own
/// columns of x and out, or its own rows.
struct PlainGemm {
  DeviceRows x = {};
  PlainWeight w = {};
  MutableDeviceRows out = {};
  std::int64_t rows = 0;
  const float* bias = nullptr;   // [w.rows], or null
  std::int64_t bias_stride = 0;  // from one weight's bias to the next
  bool add = false;
  std::int64_t count = 1;  // number of weights
  // For heads: from one weight's columns to the next.
  std::int64_t x_stride = 0, out_stride = 0;  // elements
  // For experts, otherwise null: weight i has rows offsets[i] .. offsets[i + 1] - 1, at most `rows`
  // of them.
  const std::int32_t* offsets = nullptr;  // [count + 1]
};

cudaError_t launch_plain_gemm(const PlainGemm& p, cudaStream_t stream);

}  // namespace lathe::cuda
