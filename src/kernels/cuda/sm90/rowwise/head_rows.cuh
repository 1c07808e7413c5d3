// A head's columns in one warp, or in a part of one: lane i has kCount columns from i * kCount on.
// Gives the bits of codec/chunk.cuh and codec/rotate_chunk.cuh.
#pragma once

#include "kernels/cuda/sm90/codec/value_losses.cuh"

namespace lathe::cuda {

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
__device__ __forceinline__ void store_words(Address to, const std::uint32_t (&words)[kWords]) {
  if constexpr (kWords == 1) {
    store_global(to, words[0]);
  } else if constexpr (kWords == 2) {
    store_global(to, uint2{words[0], words[1]});
  } else {
    LATHE_UNROLL
    for (int i = 0; i < kWords; i += 4) {
      store_global(to + 4 * i, uint4{words[i], words[i + 1], words[i + 2], words[i + 3]});
    }
  }
}
/// As to_bf16x2() (chunk.cuh), with one search for NaN.
template <int kCount>
__device__ __forceinline__ void store_bf16_neighbours(Address to, const float (&v)[kCount]) {
  std::uint32_t words[kCount / 2], nan = 0;
  LATHE_UNROLL
  for (int i = 0; i < kCount / 2; ++i) {
    words[i] = convert_bf16x2(v[2 * i], v[2 * i + 1]);
    nan |= (words[i] & 0x7fff7fffu) + 0x00010001u;
  }
  if ((nan & 0x80008000u) != 0) {
    LATHE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      words[i] = to_bf16(v[2 * i]).bits | std::uint32_t{to_bf16(v[2 * i + 1]).bits} << 16;
    }
  }
  store_words(to, words);
}
/// As to_raw_e4m3() (chunk.cuh).
template <int kCount>
__device__ __forceinline__ void store_e4m3_neighbours(Address to, const float (&v)[kCount],
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
    store_global(to, static_cast<std::uint16_t>(words[0]));
  } else {
    store_words(to, words);
  }
}

/// As largest_finite() (chunk.cuh), over kLanes neighbouring lanes.
template <int kLanes = 32>
__device__ __forceinline__ float largest_finite_of_lanes(const float (&x)[4]) {
  float amax = 0;
  LATHE_UNROLL
  for (const float v : x) {
    const float a = fabsf(v);
    if (a <= 0x1.fffffep127f) amax = fmaxf(amax, a);
  }
  for (int d = kLanes / 2; d > 0; d /= 2) amax = fmaxf(amax, shuffle_xor(amax, d));
  return amax;
}

/// The result of an addition, without a NaN's sign. A GPU's NaN has none.
__device__ __forceinline__ float unsigned_nan(float sum) {
#ifdef __CUDACC__
  return sum;
#else
  return sum != sum ? bits_to_float(0x7fc00000u) : sum;
#endif
}

/// Cosines and sines of a lane's pairs, of kCount * kLanes columns that kLanes neighbouring lanes
/// have. If
/// halves are paired, one per column, and the sines of the first half are negative; if neighbours
/// are paired, one per two columns.
template <int kCount, int kLanes = 32>
struct HeadRotation {
  static constexpr int kFar = kLanes / 2;  // lanes from a column to its partner in the other half
  float cosine[kCount], sine[kCount];

  /// table: [positions, kLanes * kCount].
  __device__ __forceinline__ void load(const float* table, bool interleaved, std::int32_t position,
                                       int lane) {
    const float* row = table + std::int64_t{position} * (kLanes * kCount);
    lane %= kLanes;
    if (interleaved) {
      float c[kCount / 2], s[kCount / 2];
      load_neighbours(row + lane * (kCount / 2), c);
      load_neighbours(row + (kFar * kCount) + lane * (kCount / 2), s);
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) cosine[i] = c[i / 2], sine[i] = s[i / 2];
    } else {
      load_neighbours(row + lane % kFar * kCount, cosine);
      load_neighbours(row + (kFar * kCount) + lane % kFar * kCount, sine);
      LATHE_UNROLL
      for (float& v : sine) v = lane < kFar ? -v : v;
    }
  }
  __device__ __forceinline__ void apply(bool interleaved, float (&x)[kCount]) const {
    // (a, b) becomes (a c - b s, a s + b c); -(b s) is computed as b (-s).
    if (interleaved) {
      LATHE_UNROLL
      for (int i = 0; i < kCount; i += 2) {
        const float a = x[i], b = x[i + 1];
        x[i] = a * cosine[i] + b * -sine[i];
        x[i + 1] = b * cosine[i] + a * sine[i];
      }
    } else {
      LATHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const float other = shuffle_xor(x[i], kFar);
        x[i] = x[i] * cosine[i] + other * sine[i];
      }
    }
    LATHE_UNROLL
    for (float& v : x) v = unsigned_nan(v);
  }
};

}  // namespace lathe::cuda
