// Queries from their projection to bf16 in one pass: norm, rotation, rounding. A warp takes
// neighbouring heads. Lane i has the kCols / 32 columns from i kCols / 32 on, so that the other
// half's column lies 16 lanes away. Each product and sum is rounded, in the order of the kernels
// for each of the three (narrow_norm.cuh, rotate_chunk.cuh); for 128 columns the bits are theirs.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/narrow_norm.cuh"

namespace lathe::cuda {

inline constexpr int kQueryThreads = 128;
inline constexpr int kQueryItems = 4;  // heads of a warp

template <int kCount>
__device__ __forceinline__ void load_neighbours(const float* from, float (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = from[0];
  } else if constexpr (kCount == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    LATHE_UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  }
}

template <int kCount>
__device__ __forceinline__ void store_bf16_neighbours(std::uint16_t* to, const float (&v)[kCount]) {
  std::uint32_t words[kCount / 2];
  LATHE_UNROLL
  for (int i = 0; i < kCount / 2; ++i) {
    words[i] = to_bf16(v[2 * i]).bits | std::uint32_t{to_bf16(v[2 * i + 1]).bits} << 16;
  }
  if constexpr (kCount == 2) {
    *reinterpret_cast<std::uint32_t*>(to) = words[0];
  } else if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  } else {
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  }
}

/// Cosines and sines of a lane's pairs: of its columns where halves are paired, of every two
/// neighbours where those are.
template <int kCount>
struct QueryRotation {
  float cosine[kCount], sine[kCount];

  __device__ __forceinline__ void load(const QueryParams& p, std::int32_t position, int lane) {
    const float* row = p.table + std::int64_t{position} * (32 * kCount);
    if (p.interleaved) {
      float c[kCount / 2], s[kCount / 2];
      load_neighbours(row + lane * (kCount / 2), c);
      load_neighbours(row + (16 * kCount) + lane * (kCount / 2), s);
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) cosine[i] = c[i / 2], sine[i] = s[i / 2];
    } else {
      load_neighbours(row + lane % 16 * kCount, cosine);
      load_neighbours(row + (16 * kCount) + lane % 16 * kCount, sine);
    }
  }
  __device__ __forceinline__ void apply(bool interleaved, int lane, float (&x)[kCount]) const {
    LATHE_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      // (a, b) becomes (a c - b s, a s + b c), and -(b s) is b (-s).
      float other[2] = {x[i + 1], x[i]};
      bool first[2] = {true, false};
      if (!interleaved) {
        LATHE_UNROLL
        for (int j = 0; j < 2; ++j) {
          other[j] = shuffle_xor(x[i + j], 16);
          first[j] = lane < 16;
        }
      }
      LATHE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float v = x[i + j] * cosine[i + j];
        x[i + j] = v + other[j] * (first[j] ? -sine[i + j] : sine[i + j]);
      }
    }
    LATHE_UNROLL
    for (float& v : x) v = v != v ? bits_to_float(0x7fc00000u) : v;  // a NaN has no sign
  }
};

template <int kCols>
static __global__ void __launch_bounds__(kQueryThreads)
    queries_kernel(const __grid_constant__ QueryParams p) {
  constexpr int kCount = kCols / 32;
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = std::int64_t{blockIdx.x} * (kQueryThreads / 32) + threadIdx.x / 32;
  const std::int64_t first = warp * kQueryItems, items = p.rows * p.heads;
  const auto heads = static_cast<std::uint32_t>(p.heads);
  float x[kQueryItems][kCount], weight[kCount];
  std::int64_t to[kQueryItems];
  std::int32_t positions[kQueryItems];
  LATHE_UNROLL
  for (int n = 0; n < kQueryItems; ++n) {
    const auto item = static_cast<std::uint32_t>(first + n < items ? first + n : items - 1);
    const std::int64_t row = item / heads, column = item % heads * kCols + lane * kCount;
    load_neighbours(p.x + row * p.x_stride + column, x[n]);
    to[n] = row * p.out_stride + column;
    positions[n] = p.positions[row];
  }
  if (p.weight != nullptr) load_neighbours(p.weight + lane * kCount, weight);
  QueryRotation<kCount> rotation;
  LATHE_UNROLL
  for (int n = 0; n < kQueryItems; ++n) {
    if (first + n >= items) return;
    if (p.norms) {
      float squares = 0;
      LATHE_UNROLL
      for (const float v : x[n]) squares += v * v;
      const float factor = 1 / sqrtf(warp_total(squares) / kCols + p.eps);
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        x[n][i] *= factor;
        if (p.weight != nullptr) x[n][i] *= weight[i];
      }
    }
    // Rows without a position, which only pad the batch, are not rotated.
    const auto position = static_cast<std::uint32_t>(positions[n]);
    if (position < p.table_positions) {
      if (n == 0 || positions[n] != positions[n - 1]) rotation.load(p, positions[n], lane);
      rotation.apply(p.interleaved, lane, x[n]);
    }
    store_bf16_neighbours(p.out + to[n], x[n]);
  }
}

}  // namespace lathe::cuda
