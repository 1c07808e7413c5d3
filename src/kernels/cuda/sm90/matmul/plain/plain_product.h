// Products of any weights with any rows, in f32: the route for shapes and number formats that no
// fast kernel takes, and what those are tested against.
//
// A weight is widened exactly (codes times their factor, in f32), products are f32, and a row's sum
// goes over k in ascending order: its bits depend on the row and the weight alone.
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
  const std::uint8_t* mx_scales = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  // From a weight of the stack to the next.
  std::int64_t data_stride = 0;    // bytes
  std::int64_t scales_stride = 0;  // elements of either kind
};
PlainWeight plain_weight(const WeightView& w);
/// The stack's weights lie one after the other, as CudaBackend::prepare() leaves them.
PlainWeight plain_weight(const WeightStack& w);

/// out[m, n] = sum over k of x[m, k] w[n, k]. Several weights: `count` products, each of its own
/// columns of x and out, or of its own rows.
struct PlainProduct {
  DeviceRows x = {};
  PlainWeight w = {};
  MutableDeviceRows out = {};
  std::int64_t rows = 0;
  const float* bias = nullptr;   // [w.rows] or null
  std::int64_t bias_stride = 0;  // from the bias of a weight to that of the next
  bool add = false;
  std::int64_t count = 1;  // of weights
  // Heads: from the columns of a weight to those of the next.
  std::int64_t x_stride = 0, out_stride = 0;  // elements
  // Experts, or null: weight i takes rows offsets[i] .. offsets[i + 1] - 1, `rows` at most.
  const std::int32_t* offsets = nullptr;  // [count + 1]
};

cudaError_t launch_plain_product(const PlainProduct& p, cudaStream_t stream);

}  // namespace lathe::cuda
