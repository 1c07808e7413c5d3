// The plain f32 GEMM: a block computes kTileM x kTileN outputs of one weight, over K tiles of
// kTileK in shared memory.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"

namespace lathe::cuda {

inline constexpr int kPlainTileM = 16, kPlainTileN = 32, kPlainTileK = 32;
inline constexpr int kPlainThreads = 128;

// Element of packed weights.
__device__ inline float packed_element(const PlainWeight& w, std::int64_t weight, std::int64_t n,
                                       std::int64_t k) {
  const GroupScales& g = w.groups;
  const bool u4 = w.dtype == DType::u4;
  const std::byte* row = w.data + weight * w.data_stride + n * w.cols / 2;
  const std::uint32_t code = packed_code(u4, reinterpret_cast<const std::uint32_t*>(row), k);
  const PackedGroups shape = packed_groups(w.rows, w.cols, g.size);
  const std::int64_t at = weight * shape.count() + shape.at(n, k / g.size);
  if (g.dtype == DType::ue8m0) {
    // The scale is an exponent; code 0 means 0.
    const auto scale = static_cast<std::uint32_t>(g.data[at]) << 23;
    return to_f32(e2m1{static_cast<std::uint8_t>(code)}) * bits_to_float(scale);
  }
  if (!u4) {
    const float scale = to_f32(reinterpret_cast<const e4m3*>(g.data)[at]);
    return to_f32(e2m1{static_cast<std::uint8_t>(code)}) * scale *
           w.scales[weight * w.scales_stride];
  }
  const int zero = g.zeros == nullptr ? kU4Zero : g.zeros[at];
  const float scale = g.dtype == DType::f16 ? to_f32(reinterpret_cast<const f16*>(g.data)[at])
                                            : to_f32(reinterpret_cast<const bf16*>(g.data)[at]);
  return static_cast<float>(static_cast<int>(code) - zero) * scale;
}

__device__ inline float weight_element(const PlainWeight& w, std::int64_t weight, std::int64_t n,
                                       std::int64_t k) {
  if (w.groups.data != nullptr) return packed_element(w, weight, n, k);
  const std::byte* data = w.data + weight * w.data_stride;
  const std::int64_t at = n * w.cols + k;
  const float* scales = w.scales == nullptr ? nullptr : w.scales + weight * w.scales_stride;
  switch (w.dtype) {
    case DType::f16:
      return to_f32(reinterpret_cast<const f16*>(data)[at]);
    case DType::e4m3: {
      const float code = to_f32(reinterpret_cast<const e4m3*>(data)[at]);
      if (scales == nullptr) return code;
      if (w.scale_rows) return code * scales[n];
      const std::int64_t blocks = (w.cols + kWeightBlock - 1) / kWeightBlock;
      return code * scales[n / kWeightBlock * blocks + k / kWeightBlock];
    }
    default:
      return load_element(data, w.dtype, at);
  }
}

// The column of x that column k of the weight multiplies.
__device__ inline std::int64_t input_column(const PlainWeight& w, std::int64_t weight,
                                            std::int64_t k) {
  return w.columns == nullptr ? k : w.columns[weight * w.cols + k];
}

static __global__ void __launch_bounds__(kPlainThreads)
    plain_gemm_kernel(const __grid_constant__ PlainGemm p) {
  __shared__ float x_tile[kPlainTileM][kPlainTileK + 1];
  __shared__ float w_tile[kPlainTileN][kPlainTileK + 1];
  let_next_begin();
  wait_for_previous();
  const std::int64_t weight = blockIdx.z;
  const std::int64_t first_n = std::int64_t{blockIdx.x} * kPlainTileN;
  std::int64_t begin = 0, end = p.rows;
  if (p.offsets != nullptr) {
    begin = p.offsets[weight];
    end = p.offsets[weight + 1];
  }
  const std::int64_t first_m = begin + std::int64_t{blockIdx.y} * kPlainTileM;
  if (first_m >= end) return;

  // Thread t computes column t % 32 of the tile in every fourth of its rows.
  constexpr int kRowStep = kPlainThreads / kPlainTileN;
  constexpr int kMine = kPlainTileM / kRowStep;
  const int n = static_cast<int>(threadIdx.x) % kPlainTileN;
  const int m = static_cast<int>(threadIdx.x) / kPlainTileN;
  float acc[kMine] = {};
  for (std::int64_t k0 = 0; k0 < p.w.cols; k0 += kPlainTileK) {
    const int k = static_cast<int>(threadIdx.x) % kPlainTileK;
    for (int r = static_cast<int>(threadIdx.x) / kPlainTileK; r < kPlainTileM;
         r += kPlainThreads / kPlainTileK) {
      const std::int64_t row = first_m + r;
      float v = 0;
      if (row < end && k0 + k < p.w.cols) {
        v = load_element(p.x, row, weight * p.x_stride + input_column(p.w, weight, k0 + k));
      }
      x_tile[r][k] = v;
    }
    for (int r = static_cast<int>(threadIdx.x) / kPlainTileK; r < kPlainTileN;
         r += kPlainThreads / kPlainTileK) {
      const bool inside = first_n + r < p.w.rows && k0 + k < p.w.cols;
      w_tile[r][k] = inside ? weight_element(p.w, weight, first_n + r, k0 + k) : 0.f;
    }
    sync_block();
    const auto depth = static_cast<int>(p.w.cols - k0 < kPlainTileK ? p.w.cols - k0 : kPlainTileK);
    for (int i = 0; i < depth; ++i) {
      const float w = w_tile[n][i];
      LATHE_UNROLL
      for (int j = 0; j < kMine; ++j) acc[j] += x_tile[m + j * kRowStep][i] * w;
    }
    sync_block();
  }
  if (first_n + n >= p.w.rows) return;
  const DeviceRows before{p.out.data, p.out.stride, p.out.dtype};
  const std::int64_t col = weight * p.out_stride + first_n + n;
  for (int j = 0; j < kMine; ++j) {
    const std::int64_t row = first_m + m + j * kRowStep;
    if (row >= end) break;
    float v = acc[j];
    if (p.bias != nullptr) v += p.bias[weight * p.bias_stride + first_n + n];
    if (p.add) v += load_element(before, row, col);
    store_element(p.out, row, col, v);
  }
}

}  // namespace lathe::cuda
