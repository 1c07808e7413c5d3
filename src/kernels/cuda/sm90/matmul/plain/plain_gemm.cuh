// The plain f32 GEMM: a block computes kTileM x kTileN outputs of one weight, over K tiles of
// kTileK in shared memory.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"

namespace lathe::cuda {

inline constexpr int kPlainTileM = 16, kPlainTileN = 32, kPlainTileK = 32;
inline constexpr int kPlainThreads = 128;

// The 4-bit code of element `at`.
__device__ inline std::uint8_t weight_nibble(const std::byte* data, std::int64_t at) {
  const auto pair = static_cast<std::uint8_t>(data[at / 2]);
  return static_cast<std::uint8_t>(at % 2 == 0 ? pair & 0xf : pair >> 4);
}

// The bf16 or f16 scale of a group.
__device__ inline float group_scale(const GroupScales& groups, std::int64_t group) {
  if (groups.dtype == DType::f16) return to_f32(reinterpret_cast<const f16*>(groups.data)[group]);
  return to_f32(reinterpret_cast<const bf16*>(groups.data)[group]);
}

__device__ inline float weight_element(const PlainWeight& w, std::int64_t weight, std::int64_t n,
                                       std::int64_t k) {
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
    case DType::u4: {
      const std::int64_t group = (weight * w.rows * w.cols + at) / w.groups.size;
      const int zero = w.groups.zeros == nullptr ? kU4Zero : w.groups.zeros[group];
      return static_cast<float>(weight_nibble(data, at) - zero) * group_scale(w.groups, group);
    }
    case DType::e2m1: {
      const float code = to_f32(e2m1{weight_nibble(data, at)});
      if (w.groups.data != nullptr) {
        const std::int64_t group = (weight * w.rows * w.cols + at) / kNvBlock;
        return code * to_f32(reinterpret_cast<const e4m3*>(w.groups.data)[group]) * scales[0];
      }
      const std::uint8_t scale = w.mx_scales[weight * w.scales_stride + at / kMxBlock];
      // The scale is an exponent; code 0 means 0.
      return code * bits_to_float(static_cast<std::uint32_t>(scale) << 23);
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
