// Element-wise kernels over rows: a block takes kRowThreads columns of a row at a time.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/activated.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

inline constexpr int kRowThreads = 128;

/// The element's row and column; false past the last column.
__device__ inline bool my_element(std::int64_t cols, std::int64_t& row, std::int64_t& col) {
  row = blockIdx.x;
  col = std::int64_t{blockIdx.y} * kRowThreads + threadIdx.x;
  return col < cols;
}

static __global__ void __launch_bounds__(kRowThreads)
    embed_kernel(const __grid_constant__ EmbedParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, col;
  if (my_element(p.cols, row, col)) {
    const std::int32_t token = p.tokens[row];
    float v = 0;  // a row that only pads the batch
    if (token >= 0 && token < p.vocab) {
      const std::int64_t at = token * p.cols + col;
      v = p.dtype == DType::f16 ? to_f32(reinterpret_cast<const f16*>(p.table)[at])
                                : load_element(p.table, p.dtype, at);
    }
    store_element(p.out, row, col, v * p.scale);
  }
}

static __global__ void __launch_bounds__(kRowThreads)
    gather_rows_kernel(const __grid_constant__ GatherRowsParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, col;
  if (p.words > 0) {
    if (!my_element(p.words, row, col)) return;
    const auto* from = reinterpret_cast<const uint4*>(
        p.x.data + p.of[row] * p.x.stride * (p.x.dtype == DType::f32 ? 4 : 2));
    reinterpret_cast<uint4*>(p.out.data + row * p.out.stride *
                                              (p.x.dtype == DType::f32 ? 4 : 2))[col] = from[col];
  } else if (my_element(p.cols, row, col)) {
    store_element(p.out, row, col, load_element(p.x, p.of[row], col));
  }
}

static __global__ void __launch_bounds__(kRowThreads)
    copy_rows_kernel(const __grid_constant__ CopyRowsParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, col;
  if (my_element(p.cols, row, col)) {
    const std::int64_t to = blockIdx.z * p.out_head + col;
    float v = load_element(p.x, row, blockIdx.z * p.x_head + col);
    if (p.add) v += load_element(DeviceRows{p.out.data, p.out.stride, p.out.dtype}, row, to);
    store_element(p.out, row, to, v);
  }
}

// `out` may be the first columns of a gate that holds both projections by turns: then one block has
// the whole row, and reads as far as it writes before it does.
static __global__ void __launch_bounds__(kRowThreads)
    gated_activation_kernel(const __grid_constant__ ActivationParams p) {
  let_next_begin();
  wait_for_previous();
  if (p.up.data != nullptr) {
    std::int64_t row, col;
    if (my_element(p.cols, row, col)) {
      const float v = load_element(p.gate, row, col);
      store_element(p.out, row, col, activated(p.activation, v, load_element(p.up, row, col)));
    }
  } else {
    const std::int64_t row = blockIdx.x;
    for (std::int64_t first = 0; first < p.cols; first += kRowThreads) {
      const std::int64_t col = first + threadIdx.x;
      float v = 0;
      if (col < p.cols) {
        v = activated(p.activation, load_element(p.gate, row, 2 * col),
                      load_element(p.gate, row, 2 * col + 1));
      }
      sync_block();
      if (col < p.cols) store_element(p.out, row, col, v);
      sync_block();
    }
  }
}

// A block per row.
static __global__ void __launch_bounds__(kRowThreads)
    find_non_finite_kernel(const __grid_constant__ NonFiniteParams p) {
  __shared__ std::uint32_t found[kRowThreads / 32];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  bool mine = false;
  for (std::int64_t i = threadIdx.x; i < p.cols; i += kRowThreads) {
    constexpr std::uint32_t kExponent = 0x7f800000u;
    mine |= (float_to_bits(load_element(p.x, row, i)) & kExponent) == kExponent;
  }
  const std::uint32_t lanes = warp_ballot(mine);
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = lanes;
  sync_block();
  if (threadIdx.x == 0) {
    std::uint32_t any = 0;
    for (const std::uint32_t of_warp : found) any |= of_warp;
    std::int32_t* first = p.first + (p.of != nullptr ? p.of[row] : row);
    if (any != 0 && *first > p.layer) *first = p.layer;
  }
}

}  // namespace lathe::cuda
