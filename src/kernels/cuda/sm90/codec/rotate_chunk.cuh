// Rotation of chunks (layout/rope.h says what a pair turns into).
#pragma once

#include "kernels/cuda/sm90/codec/chunk.cuh"

namespace lathe::cuda {

// (a, b) turned by the angle whose cosine and sine are c and s: each product and sum is rounded,
// and a NaN has no sign.
__device__ __forceinline__ void turn(float& a, float& b, float c, float s) {
  const float turned_a = a * c - b * s;
  const float turned_b = a * s + b * c;
  a = canonical(turned_a, 0);
  b = canonical(turned_b, 0);
}

template <bool kAligned, int kCount>
__device__ __forceinline__ void load_table(const RopeParams& rope, const float* at,
                                           float (&out)[kCount]) {
  for (int i = 0; i < kCount; i += 4) {
    const uint4 v =
        load<uint4>(reinterpret_cast<const std::byte*>(at + i), kAligned || rope.vector);
    out[i] = bits_to_float(v.x);
    out[i + 1] = bits_to_float(v.y);
    out[i + 2] = bits_to_float(v.z);
    out[i + 3] = bits_to_float(v.w);
  }
}

__device__ __forceinline__ const float* table_row(const RopeParams& rope, std::int32_t position) {
  return rope.table + std::int64_t{position} * (2 * kChunk * rope.half);
}

// Rotary chunk c (0 .. 2 half - 1) of interleaved pairs, in place.
template <bool kAligned>
__device__ __forceinline__ void rotate_interleaved(const RopeParams& rope, std::int32_t position,
                                                   int c, float (&x)[8]) {
  const float* cosines = table_row(rope, position) + 4 * c;
  float cosine[4], sine[4];
  load_table<kAligned>(rope, cosines, cosine);
  load_table<kAligned>(rope, cosines + kChunk * rope.half, sine);
  for (int i = 0; i < 4; ++i) {
    turn(x[2 * i], x[2 * i + 1], cosine[i], rope.inverse ? -sine[i] : sine[i]);
  }
}

// Rotary chunks c < half and c + half, in place: element i of one is paired with i of the other.
template <bool kAligned>
__device__ __forceinline__ void rotate_halves(const RopeParams& rope, std::int32_t position, int c,
                                              float (&low)[8], float (&high)[8]) {
  const float* cosines = table_row(rope, position) + kChunk * c;
  float cosine[8], sine[8];
  load_table<kAligned>(rope, cosines, cosine);
  load_table<kAligned>(rope, cosines + kChunk * rope.half, sine);
  for (int i = 0; i < 8; ++i) turn(low[i], high[i], cosine[i], rope.inverse ? -sine[i] : sine[i]);
}

// Rotates x, the values of the row's chunk `chunk`, where it is rotary. `row` starts at the row's
// first element, as split halves need the other half too.
template <class T, bool kAligned>
__device__ __forceinline__ void rotate_chunk(const RopeParams& rope, std::int32_t position,
                                             const std::byte* row, bool vector, std::uint32_t chunk,
                                             float (&x)[8]) {
  const int c = static_cast<int>(chunk) - rope.first;
  if (c < 0 || c >= 2 * rope.half) return;
  if (rope.interleaved) return rotate_interleaved<kAligned>(rope, position, c, x);
  const bool is_low = c < rope.half;
  const int other = static_cast<int>(chunk) + (is_low ? rope.half : -rope.half);
  float partner[8];
  to_floats(load_raw<T>(row + std::int64_t{other} * kChunk * static_cast<int>(sizeof(T)), vector),
            partner);
  float low[8], high[8];
  for (int i = 0; i < 8; ++i) {
    low[i] = is_low ? x[i] : partner[i];
    high[i] = is_low ? partner[i] : x[i];
  }
  rotate_halves<kAligned>(rope, position, is_low ? c : c - rope.half, low, high);
  for (int i = 0; i < 8; ++i) x[i] = is_low ? low[i] : high[i];
}

}  // namespace lathe::cuda
