// Queries, keys and values in one pass (qkv.h). A warp takes neighbouring heads of a row's queries,
// keys and values. Lane i has the kCols / 32 columns from i kCols / 32 on, so that the other half's
// column lies 16 lanes away. Each product and sum is rounded, in the order of the kernels for each
// part (narrow_norm.cuh, rotate_chunk.cuh, encode.cuh); for 128 columns the bits are theirs.
#pragma once

#include "kernels/cuda/sm90/codec/value_losses.cuh"
#include "kernels/cuda/sm90/rowwise/narrow_norm.cuh"
#include "kernels/cuda/sm90/rowwise/qkv.h"

namespace lathe::cuda {

inline constexpr int kQkvThreads = 128;
inline constexpr int kQkvHeads = 4;  // of a warp

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

template <int kWords>
__device__ __forceinline__ void store_words(void* to, const std::uint32_t (&words)[kWords]) {
  if constexpr (kWords == 1) {
    *static_cast<std::uint32_t*>(to) = words[0];
  } else if constexpr (kWords == 2) {
    *static_cast<uint2*>(to) = {words[0], words[1]};
  } else {
    *static_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  }
}
template <int kCount>
__device__ __forceinline__ void store_bf16_neighbours(void* to, const float (&v)[kCount]) {
  std::uint32_t words[kCount / 2];
  LATHE_UNROLL
  for (int i = 0; i < kCount / 2; ++i) words[i] = to_bf16x2(v[2 * i], v[2 * i + 1]);
  store_words(to, words);
}
/// As to_raw_e4m3() (chunk.cuh).
template <int kCount>
__device__ __forceinline__ void store_e4m3_neighbours(void* to, const float (&v)[kCount],
                                                      float inverse) {
  constexpr int kWords = (kCount + 3) / 4;
  float x[4 * kWords] = {};
  LATHE_UNROLL
  for (int i = 0; i < kCount; ++i) x[i] = v[i];
  std::uint32_t words[kWords], nan = 0;
  LATHE_UNROLL
  for (int i = 0; i < kWords; ++i) {
    words[i] = convert_e4m3x4(x[4 * i] * inverse, x[4 * i + 1] * inverse, x[4 * i + 2] * inverse,
                              x[4 * i + 3] * inverse);
    nan |= nan_codes(words[i]);
  }
  if (nan != 0) {
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      words[i] = 0;
      for (int j = 0; j < 4; ++j) words[i] |= to_e4m3_code(x[4 * i + j], inverse) << (8 * j);
    }
  }
  if constexpr (kCount == 2) {
    *static_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(words[0]);
  } else {
    store_words(to, words);
  }
}

/// Cosines and sines of a lane's pairs: of its columns where halves are paired, of every two
/// neighbours where those are.
template <int kCount>
struct HeadRotation {
  float cosine[kCount], sine[kCount];

  __device__ __forceinline__ void load(const QkvParams& p, std::int32_t position, int lane) {
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

template <int kCols, bool kCodes>
static __global__ void __launch_bounds__(kQkvThreads)
    qkv_kernel(const __grid_constant__ QkvParams p) {
  constexpr int kCount = kCols / 32;
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t warp = blockIdx.x * (kQkvThreads / 32) + threadIdx.x / 32;
  const std::uint32_t first = warp * kQkvHeads;
  const auto count = static_cast<std::uint32_t>(p.rows) * p.heads_of_row.divisor;
  float x[kQkvHeads][kCount], q_weight[kCount], k_weight[kCount];
  std::uint32_t row[kQkvHeads];
  std::int32_t head[kQkvHeads], positions[kQkvHeads], slots[kQkvHeads];
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    const std::uint32_t i = first + n < count ? first + n : count - 1;
    row[n] = p.heads_of_row(i);
    head[n] = static_cast<std::int32_t>(i - row[n] * p.heads_of_row.divisor);
    const bool query = head[n] < p.heads;
    const float* from = query ? p.q + row[n] * p.q_stride : p.kv + row[n] * p.kv_stride;
    load_neighbours(from + (query ? head[n] : head[n] - p.heads) * kCols + lane * kCount, x[n]);
    positions[n] = p.positions[row[n]];
    slots[n] = p.slots[row[n]];
  }
  if (p.q_norm != nullptr) load_neighbours(p.q_norm + lane * kCount, q_weight);
  if (p.k_norm != nullptr) load_neighbours(p.k_norm + lane * kCount, k_weight);
  HeadRotation<kCount> rotation;
  std::int32_t rotation_of = -1;
  ValueLosses losses;
  LATHE_UNROLL
  for (int n = 0; n < kQkvHeads; ++n) {
    if (first + n >= count) break;
    const std::int32_t stored = head[n] - p.heads;  // below 0: a query
    const bool query = stored < 0, value = stored >= p.kv_heads;
    if (p.norms && !value) {
      float squares = 0;
      LATHE_UNROLL
      for (const float v : x[n]) squares += v * v;
      const float factor = 1 / sqrtf(warp_total(squares) / kCols + p.eps);
      const bool weighs = (query ? p.q_norm : p.k_norm) != nullptr;
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        x[n][i] *= factor;
        if (weighs) x[n][i] *= query ? q_weight[i] : k_weight[i];
      }
    }
    // Rows without a position, which only pad the batch, are not rotated.
    if (!value && static_cast<std::uint32_t>(positions[n]) < p.table_positions) {
      if (rotation_of != positions[n]) rotation.load(p, positions[n], lane);
      rotation_of = positions[n];
      rotation.apply(p.interleaved, lane, x[n]);
    }
    if (query) {
      store_bf16_neighbours(p.q_out + row[n] * p.q_out_stride + head[n] * kCols + lane * kCount,
                            x[n]);
      continue;
    }
    const Place place = place_of(p.pages, slots[n]);
    if (place.hole) continue;
    const StoredHeads& to = value ? p.values : p.keys;
    const std::uint32_t column =
        static_cast<std::uint32_t>(value ? stored - p.kv_heads : stored) * kCols + lane * kCount;
    auto* at = reinterpret_cast<void*>(place.part(to.start, to.step));
    if constexpr (kCodes) {
      if (p.counts != nullptr) losses.see(x[n], to.inverse);
      store_e4m3_neighbours(static_cast<std::uint8_t*>(at) + column, x[n], to.inverse);
    } else {
      store_bf16_neighbours(static_cast<std::uint16_t*>(at) + column, x[n]);
    }
  }
  if constexpr (kCodes) {
    if (p.counts != nullptr) losses.add_to(p.counts);
  }
}

}  // namespace lathe::cuda
