// RMS norms of many wide rows of f32, with the bits of norm_kernel (norm.cuh): a block a row, which
// it reads once, in words of four columns.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/cache_hints.cuh"
#include "kernels/cuda/sm90/rowwise/head_rows.cuh"
#include "kernels/cuda/sm90/rowwise/norm.cuh"

namespace lathe::cuda {

/// Columns of a word per thread.
inline constexpr int kWideNormColumns = 4 * kNormThreads;

/// Transposes four columns of lanes l, l ^ 8, l ^ 16 and l ^ 24: the lane that is number q of them
/// gets column q of each.
__device__ __forceinline__ void transpose_columns(const float4& x, int lane, float (&out)[4]) {
  const bool odd = (lane & 8) != 0, upper = (lane & 16) != 0;
  const float a = shuffle_xor(odd ? x.x : x.y, 8), b = shuffle_xor(odd ? x.z : x.w, 8);
  const float low[2] = {odd ? a : x.x, odd ? x.y : a}, high[2] = {odd ? b : x.z, odd ? x.w : b};
  LATHE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float got = shuffle_xor(upper ? low[i] : high[i], 16);
    out[i] = upper ? got : low[i];
    out[2 + i] = upper ? high[i] : got;
  }
}

/// Adds the word of f32 or bf16 columns to `y`.
__device__ __forceinline__ void add_word(const std::byte* row, DType dtype, int word, float4& y) {
  float4 v;
  if (dtype == DType::f32) {
    v = reinterpret_cast<const float4*>(row)[word];
  } else {
    const uint2 pairs = reinterpret_cast<const uint2*>(row)[word];
    widen(pairs.x, v.x, v.y);
    widen(pairs.y, v.z, v.w);
  }
  y = {y.x + v.x, y.y + v.y, y.z + v.z, y.w + v.w};
}
__device__ __forceinline__ void store_word(std::byte* row, DType dtype, int word, const float4& y) {
  if (dtype == DType::f32) {
    reinterpret_cast<float4*>(row)[word] = y;
  } else {
    store_bf16_neighbours<4>(address_of(row) + 8 * word, {y.x, y.y, y.z, y.w});
  }
}

/// Grid: rows. kWords: words per thread, so up to kWords * kWideNormColumns columns.
/// Precondition: a weight, no bias; whole words of columns in x, weight and out.
template <int kWords>
static __global__ void __launch_bounds__(kNormThreads)
    wide_norm_kernel(const __grid_constant__ NormParams p) {
  __shared__ float room[kNormThreads / 32];
  let_next_begin();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  // In norm_kernel thread 32 w + 4 i + q adds column q of words 8 w + i + 32 u. A group of eight
  // lanes here loads such words of every fourth u.
  const int first = thread / 32 * 8 + lane / 8 * 32 + lane % 8;
  const int words = static_cast<int>(p.cols / 4);
  // All blocks of an SM load the weights from L1. Loads of rows of up to 4096 columns leave them
  // there; with wider rows plain loads take less time.
  constexpr bool kPastL1 = kWords <= 8;
  float4 x[kWords];
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const auto* const from = reinterpret_cast<const float4*>(p.x.data + 4 * row * p.x.stride);
  LATHE_UNROLL
  for (int k = 0; k < kWords; ++k) {
    const int word = first + k * kNormThreads;
    x[k] = word >= words ? float4{} : kPastL1 ? load_past_l1(from + word) : from[word];
  }
  float squares = 0;
  LATHE_UNROLL
  for (int k = 0; k < kWords; ++k) {
    float v[4];
    transpose_columns(x[k], lane, v);
    LATHE_UNROLL
    for (const float value : v) squares += value * value;
  }
  // The lanes in the order of block_sum(), whose distances 16, 8, 4, 2, 1 these are.
  for (const int d : {4, 2, 1, 16, 8}) squares += shuffle_xor(squares, d);
  if (lane == 0) room[thread / 32] = squares;
  sync_block();
  squares = ((room[0] + room[1]) + room[2]) + room[3];
  const float factor = 1 / sqrtf(squares / static_cast<float>(p.cols) + p.eps);
  std::byte* const out = p.out.data + row * p.out.stride * (p.out.dtype == DType::f32 ? 4 : 2);
  LATHE_UNROLL
  for (int k = 0; k < kWords; ++k) {
    const int word = first + k * kNormThreads;
    const float4 w = word < words ? reinterpret_cast<const float4*>(p.weight)[word] : float4{};
    x[k] = {x[k].x * factor * w.x, x[k].y * factor * w.y, x[k].z * factor * w.z,
            x[k].w * factor * w.w};
  }
  if (p.add) {  // loads all of the old sum before the first store
    LATHE_UNROLL
    for (int k = 0; k < kWords; ++k) {
      const int word = first + k * kNormThreads;
      if (word < words) add_word(out, p.out.dtype, word, x[k]);
    }
  }
  LATHE_UNROLL
  for (int k = 0; k < kWords; ++k) {
    const int word = first + k * kNormThreads;
    if (word < words) store_word(out, p.out.dtype, word, x[k]);
  }
}

}  // namespace lathe::cuda
