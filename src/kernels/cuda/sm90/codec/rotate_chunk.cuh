// Applies RoPE to chunks of a row (layout/rope/rope.h defines the rotation of a pair).
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// Everything that a lane needs to rotate a chunk, loaded before it is used.
template <class T>
struct Rotation {
  float cosine[8];  // four of each if pairs are interleaved
  float sine[8];
  Raw<T> partner;  // the other half's chunk, if halves are paired
};

template <bool kWhole>
__device__ __forceinline__ void load_table(const RopeParams& rope, Address at, float* out) {
  const uint4 v = load<uint4>(at, kWhole || rope.vector);
  out[0] = bits_to_float(v.x);
  out[1] = bits_to_float(v.y);
  out[2] = bits_to_float(v.z);
  out[3] = bits_to_float(v.w);
}

// Index of chunk `chunk` of a head within the rotary part, or -1.
__device__ __forceinline__ int rotary_chunk(const RopeParams& rope, std::uint32_t chunk) {
  const int c = static_cast<int>(chunk) - rope.first;
  return c >= 0 && c < 2 * rope.half ? c : -1;
}

// Loads the partner of rotary chunk c; c is at address `at`.
template <class T>
__device__ __forceinline__ void load_partner(const RopeParams& rope, int c, Address at, bool vector,
                                             Rotation<T>& rotation) {
  rotation.partner = {};
  if (rope.interleaved || c < 0) return;
  const Address far = static_cast<Address>(rope.half) * kChunk * sizeof(T);
  rotation.partner = load_raw<T>(c < rope.half ? at + far : at - far, vector);
}

template <class T, bool kWhole>
__device__ __forceinline__ void load_rotation(const RopeParams& rope, std::int32_t position, int c,
                                              Rotation<T>& rotation) {
  const auto dim = static_cast<std::uint32_t>(2 * kChunk * rope.half);
  const Address row = address_of(rope.table) +
                      Address{static_cast<std::uint32_t>(position)} * (dim * sizeof(float));
  const Address sines = dim / 2 * sizeof(float);
  if (rope.interleaved) {
    const Address at = row + static_cast<Address>(c) * 16;
    load_table<kWhole>(rope, at, rotation.cosine);
    load_table<kWhole>(rope, at + sines, rotation.sine);
    return;
  }
  const Address at = row + static_cast<Address>(c < rope.half ? c : c - rope.half) * 32;
  for (int i = 0; i < 8; i += 4) {
    load_table<kWhole>(rope, at + 4 * static_cast<Address>(i), rotation.cosine + i);
    load_table<kWhole>(rope, at + sines + 4 * static_cast<Address>(i), rotation.sine + i);
  }
}

// Rotates x, the values of rotary chunk c. Each product and sum is rounded, and a NaN has no sign.
template <class T>
__device__ __forceinline__ void rotate(const RopeParams& rope, const Rotation<T>& rotation, int c,
                                       float (&x)[8]) {
  if (rope.interleaved) {
    for (int i = 0; i < 8; i += 2) {
      const float cosine = rotation.cosine[i / 2];
      const float sine = rope.inverse ? -rotation.sine[i / 2] : rotation.sine[i / 2];
      const float a = x[i] * cosine - x[i + 1] * sine;
      x[i + 1] = x[i] * sine + x[i + 1] * cosine;
      x[i] = a;
    }
  } else {
    // (a, b) becomes (a c - b s, a s + b c); -(b s) is computed as b (-s).
    const bool negative = (c < rope.half) != rope.inverse;
    float partner[8];
    to_floats(rotation.partner, partner);
    for (int i = 0; i < 8; ++i) {
      const float sine = negative ? -rotation.sine[i] : rotation.sine[i];
      x[i] = x[i] * rotation.cosine[i] + partner[i] * sine;
    }
  }
  bool nan = false;
  for (int i = 0; i < 8; ++i) nan = nan || is_nan(x[i]);
  if (!nan) return;
  for (int i = 0; i < 8; ++i) x[i] = canonical(x[i], 0);
}

}  // namespace lathe::cuda
