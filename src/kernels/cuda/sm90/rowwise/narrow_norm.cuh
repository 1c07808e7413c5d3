// Norms of up to kNarrowNorm columns, mainly of heads. A warp processes several rows and heads,
// because a block for each would spend most of its time starting up. Lane i adds elements 4 i to 4
// i + 3, then those 128 further on, and lanes are added as a tree, so the order of a row's sum
// depends on its width alone.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

inline constexpr int kNarrowNorm = 256;
inline constexpr int kNarrowNormThreads = 128;
inline constexpr int kNarrowNormItems = 4;  // rows and heads per warp

/// A lane's elements of a row.
struct NarrowRow {
  static constexpr int kElements = kNarrowNorm / 32;
  float v[kElements];
};

/// Column of a lane's element i.
__device__ __forceinline__ std::int64_t narrow_column(int lane, int i) {
  return i / 4 * 128 + 4 * lane + i % 4;
}

/// Loads elements from `at` on; those past `cols` are `other`. words: loads four elements at a
/// time.
__device__ __forceinline__ NarrowRow load_narrow(const std::byte* data, DType dtype,
                                                 std::int64_t at, std::int64_t cols, bool words,
                                                 int lane, float other) {
  NarrowRow out;
  LATHE_UNROLL
  for (int i = 0; i < NarrowRow::kElements; i += 4) {
    const std::int64_t col = narrow_column(lane, i);
    if (words && col < cols) {
      if (dtype == DType::f32) {
        const float4 x = *reinterpret_cast<const float4*>(data + 4 * (at + col));
        out.v[i] = x.x, out.v[i + 1] = x.y, out.v[i + 2] = x.z, out.v[i + 3] = x.w;
      } else {
        const uint2 x = *reinterpret_cast<const uint2*>(data + 2 * (at + col));
        out.v[i] = bits_to_float(x.x << 16), out.v[i + 1] = bits_to_float(x.x & 0xffff0000u);
        out.v[i + 2] = bits_to_float(x.y << 16), out.v[i + 3] = bits_to_float(x.y & 0xffff0000u);
      }
      continue;
    }
    LATHE_UNROLL
    for (int j = i; j < i + 4; ++j) {
      out.v[j] = narrow_column(lane, j) < cols
                     ? load_element(data, dtype, at + narrow_column(lane, j))
                     : other;
    }
  }
  return out;
}

__device__ __forceinline__ float warp_total(float v) {
  for (int d = 16; d > 0; d /= 2) v += shuffle_xor(v, d);
  return v;
}

static __global__ void __launch_bounds__(kNarrowNormThreads)
    narrow_norm_kernel(const __grid_constant__ NormParams p) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = std::int64_t{blockIdx.x} * (kNarrowNormThreads / 32) + threadIdx.x / 32;
  const std::int64_t first = warp * kNarrowNormItems, items = p.rows * p.heads;
  const auto heads = static_cast<std::uint32_t>(p.heads);
  const auto cols = static_cast<float>(p.cols);
  NarrowRow weight, x[kNarrowNormItems];
  std::int64_t rows[kNarrowNormItems], columns[kNarrowNormItems];
  LATHE_UNROLL
  for (int n = 0; n < kNarrowNormItems; ++n) {
    const auto item = static_cast<std::uint32_t>(first + n < items ? first + n : items - 1);
    rows[n] = item / heads;
    columns[n] = (item % heads) * p.cols;
    x[n] = load_narrow(p.x.data, p.x.dtype, rows[n] * p.x.stride + columns[n], p.cols, p.words,
                       lane, 0);
  }
  if (p.weight != nullptr) {
    weight = load_narrow(reinterpret_cast<const std::byte*>(p.weight), DType::f32, 0, p.cols,
                         p.words, lane, 0);
  }
  LATHE_UNROLL
  for (int n = 0; n < kNarrowNormItems; ++n) {
    if (first + n >= items) return;
    float mean = 0;
    if (p.bias != nullptr) {
      float sum = 0;
      LATHE_UNROLL
      for (const float v : x[n].v) sum += v;
      mean = warp_total(sum) / cols;
    }
    float squares = 0;
    LATHE_UNROLL
    for (int i = 0; i < NarrowRow::kElements; ++i) {
      const float v = narrow_column(lane, i) < p.cols ? x[n].v[i] - mean : 0;
      squares += v * v;
    }
    const float factor = 1 / sqrtf(warp_total(squares) / cols + p.eps);
    const std::int64_t at = rows[n] * p.out.stride + columns[n];
    NarrowRow y, before;
    if (p.add) before = load_narrow(p.out.data, p.out.dtype, at, p.cols, p.words, lane, 0);
    LATHE_UNROLL
    for (int i = 0; i < NarrowRow::kElements; ++i) {
      y.v[i] = (x[n].v[i] - mean) * factor;
      if (p.weight != nullptr) y.v[i] *= weight.v[i];
      const std::int64_t col = narrow_column(lane, i);
      if (p.bias != nullptr && col < p.cols) y.v[i] += p.bias[col];
      if (p.add) y.v[i] += before.v[i];
    }
    LATHE_UNROLL
    for (int i = 0; i < NarrowRow::kElements; i += 4) {
      const std::int64_t col = narrow_column(lane, i);
      if (p.words && col < p.cols && p.out.dtype == DType::f32) {
        *reinterpret_cast<float4*>(p.out.data + 4 * (at + col)) = {y.v[i], y.v[i + 1], y.v[i + 2],
                                                                   y.v[i + 3]};
      } else if (p.words && col < p.cols && p.out.dtype == DType::bf16) {
        *reinterpret_cast<uint2*>(p.out.data + 2 * (at + col)) = {
            to_bf16(y.v[i]).bits | std::uint32_t{to_bf16(y.v[i + 1]).bits} << 16,
            to_bf16(y.v[i + 2]).bits | std::uint32_t{to_bf16(y.v[i + 3]).bits} << 16};
      } else {
        LATHE_UNROLL
        for (int j = i; j < i + 4; ++j) {
          if (narrow_column(lane, j) < p.cols) {
            store_element(p.out, rows[n], columns[n] + narrow_column(lane, j), y.v[j]);
          }
        }
      }
    }
  }
}

}  // namespace lathe::cuda
