// A chunk is eight elements of a row in registers. Loads, stores and conversions here give the bits
// that layout/codec/codec.h specifies. Compiled with --fmad=false: multiply and add stay separate
// roundings.
#pragma once

#include "base/float_formats.h"
#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/codec/codec_params.h"

namespace lathe::cuda {

constexpr std::uint32_t kQuietNan = 0x7fc00000u;

__device__ __forceinline__ bool is_nan(float x) { return x != x; }

// Eight elements as in memory: 16 bytes of bf16, 32 of f32.
template <class T>
struct Raw;
template <>
struct Raw<bf16> {
  uint4 v;
};
template <>
struct Raw<float> {
  uint4 v[2];
};

using Address = unsigned long long;  // in device memory

template <class T>
__device__ __forceinline__ T load_bytes(Address at) {
  T out;
  auto* to = reinterpret_cast<unsigned char*>(&out);
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = load_global<unsigned char>(at + i);
  return out;
}

// To: Address, or a type with store_global().
template <class To, class T>
__device__ __forceinline__ void store_bytes(To at, T v) {
  const auto* from = reinterpret_cast<const unsigned char*>(&v);
  for (unsigned i = 0; i < sizeof(T); ++i) store_global(at + i, from[i]);
}

// Accesses sizeof(T) bytes at once, or byte by byte where `at` may be unaligned. Each kernel has
// two instances: with `vector` the constant true, which removes the other branch, and for any
// alignment.
template <class T>
__device__ __forceinline__ T load(Address at, bool vector) {
  return vector ? load_global<T>(at) : load_bytes<T>(at);
}
template <class To, class T>
__device__ __forceinline__ void store(To at, T v, bool vector) {
  if (vector) {
    store_global(at, v);
  } else {
    store_bytes(at, v);
  }
}

template <class T>
__device__ __forceinline__ Raw<T> load_raw(Address at, bool vector);
template <>
__device__ __forceinline__ Raw<bf16> load_raw<bf16>(Address at, bool vector) {
  return {load<uint4>(at, vector)};
}
template <>
__device__ __forceinline__ Raw<float> load_raw<float>(Address at, bool vector) {
  return {{load<uint4>(at, vector), load<uint4>(at + 16, vector)}};
}
__device__ __forceinline__ void store_raw(Address at, const Raw<bf16>& raw, bool vector) {
  store(at, raw.v, vector);
}
__device__ __forceinline__ void store_raw(Address at, const Raw<float>& raw, bool vector) {
  store(at, raw.v[0], vector);
  store(at + 16, raw.v[1], vector);
}

__device__ __forceinline__ void widen(std::uint32_t pair, float& first, float& second) {
  first = bits_to_float(pair << 16);
  second = bits_to_float(pair & 0xffff0000u);
}

__device__ __forceinline__ void to_floats(const Raw<bf16>& raw, float (&x)[8]) {
  widen(raw.v.x, x[0], x[1]);
  widen(raw.v.y, x[2], x[3]);
  widen(raw.v.z, x[4], x[5]);
  widen(raw.v.w, x[6], x[7]);
}
__device__ __forceinline__ void to_floats(const Raw<float>& raw, float (&x)[8]) {
  for (int i = 0; i < 2; ++i) {
    x[4 * i] = bits_to_float(raw.v[i].x);
    x[4 * i + 1] = bits_to_float(raw.v[i].y);
    x[4 * i + 2] = bits_to_float(raw.v[i].z);
    x[4 * i + 3] = bits_to_float(raw.v[i].w);
  }
}

__device__ __forceinline__ Raw<float> to_raw_f32(const float (&x)[8]) {
  return {{{float_to_bits(x[0]), float_to_bits(x[1]), float_to_bits(x[2]), float_to_bits(x[3])},
           {float_to_bits(x[4]), float_to_bits(x[5]), float_to_bits(x[6]), float_to_bits(x[7])}}};
}

// Two f32 to bf16 as to_bf16() does. The instruction returns another NaN, which is found by its
// bits and replaced.
__device__ __forceinline__ std::uint32_t to_bf16x2(float low, float high) {
  const std::uint32_t pair = convert_bf16x2(low, high);
  if ((((pair & 0x7fff7fffu) + 0x00010001u) & 0x80008000u) == 0) return pair;
  return std::uint32_t{to_bf16(low).bits} | std::uint32_t{to_bf16(high).bits} << 16;
}

__device__ __forceinline__ Raw<bf16> to_raw_bf16(const float (&x)[8]) {
  return {
      {to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]), to_bf16x2(x[4], x[5]), to_bf16x2(x[6], x[7])}};
}

// to_e4m3(x * inverse); a NaN keeps the sign of x, which the multiplication may lose.
__device__ __forceinline__ std::uint32_t to_e4m3_code(float x, float inverse) {
  return to_e4m3(is_nan(x) ? x : x * inverse).bits;
}

// 0x80 in every byte of `codes` that is an e4m3 NaN.
__device__ __forceinline__ std::uint32_t nan_codes(std::uint32_t codes) {
  return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

// Eight e4m3 codes of x * inverse. A NaN in x gives a NaN code of either sign.
__device__ __forceinline__ uint2 to_raw_e4m3_numbers(const float (&x)[8], float inverse) {
  return {convert_e4m3x4(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse),
          convert_e4m3x4(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse)};
}

__device__ __forceinline__ uint2 to_raw_e4m3(const float (&x)[8], float inverse) {
  uint2 codes = to_raw_e4m3_numbers(x, inverse);
  if ((nan_codes(codes.x) | nan_codes(codes.y)) == 0) return codes;
  codes = {0, 0};
  for (int i = 0; i < 4; ++i) {
    codes.x |= to_e4m3_code(x[i], inverse) << (8 * i);
    codes.y |= to_e4m3_code(x[i + 4], inverse) << (8 * i);
  }
  return codes;
}

// Byte `byte` of each of four words.
__device__ __forceinline__ std::uint32_t gather_bytes(std::uint32_t a, std::uint32_t b,
                                                      std::uint32_t c, std::uint32_t d,
                                                      std::uint32_t byte) {
  const std::uint32_t choice = byte | (byte + 4) << 4;
  return permute_bytes(permute_bytes(a, b, choice), permute_bytes(c, d, choice), 0x5410);
}

// Eight e2m1 codes of x * inverse, the first in the low nibble. Between 2^e and 2^(e+1) e2m1's
// spacing is 2^(e-1), and below 1 it is 1/2. So one multiply-add of the magnitude times 2^(1-e)
// onto 2^23 + 2e leaves the code in the sum's low bits, rounded once to nearest even, because the
// addend is even. Both factors come from the exponent by integer arithmetic.
__device__ __forceinline__ std::uint32_t to_raw_e2m1(const float (&x)[8], float inverse) {
  std::uint32_t sum[8], bits[8];
  bool nan = false;
  for (int i = 0; i < 8; ++i) {
    const float a = fminf(fabsf(x[i] * inverse), kE2m1Max);
    const std::uint32_t exponent = float_to_bits(fmaxf(a, 1.0f)) & 0x7f800000u;
    const float per_step = bits_to_float((255u << 23) - exponent);
    const float base = bits_to_float(0x4b000000u - 254u + (exponent >> 22));
    sum[i] = float_to_bits(fmaf(a, per_step, base));
    bits[i] = float_to_bits(x[i]);
    nan = nan || is_nan(x[i]);
  }
  const std::uint32_t even = gather_bytes(sum[0], sum[2], sum[4], sum[6], 0);
  const std::uint32_t odd = gather_bytes(sum[1], sum[3], sum[5], sum[7], 0);
  const std::uint32_t even_signs = gather_bytes(bits[0], bits[2], bits[4], bits[6], 3);
  const std::uint32_t odd_signs = gather_bytes(bits[1], bits[3], bits[5], bits[7], 3);
  std::uint32_t codes = ((even & 0x07070707u) | (odd << 4 & 0x70707070u)) |
                        (even_signs >> 4 & 0x08080808u) | (odd_signs & 0x80808080u);
  if (!nan) return codes;
  for (int i = 0; i < 8; ++i) {
    if (is_nan(x[i])) codes = (codes & ~(15u << (4 * i))) | 7u << (4 * i);
  }
  return codes;
}

// As to_raw_e2m1(), for bf16 x without NaN and |x * inverse| of at most 6. Times 2^-14 and as f16,
// e2m1's 0 and 1/2 are zero and a subnormal number, so an e2m1 code is the f16 without its last
// nine bits. The conversion to f16 loses only bits below 1/8, because bf16 has fewer mantissa bits.
__device__ __forceinline__ std::uint32_t to_raw_e2m1_numbers(const Raw<bf16>& raw, float inverse) {
  const float factor = inverse * 0x1p-14f;
  const std::uint32_t words[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
  std::uint32_t half[4];
  for (int i = 0; i < 4; ++i) {
    float low, high;
    widen(words[i], low, high);
    const std::uint32_t h = convert_f16x2(low * factor, high * factor);
    half[i] = h + 0x00ff00ffu + (h >> 9 & 0x00010001u);
  }
  // Each byte has the sign in bit 7 and the code in bits 1 to 3.
  const std::uint32_t even = gather_bytes(half[0], half[1], half[2], half[3], 1);
  const std::uint32_t odd = gather_bytes(half[0], half[1], half[2], half[3], 3);
  return (even >> 1 & 0x07070707u) | (even >> 4 & 0x08080808u) | (odd << 3 & 0x70707070u) |
         (odd & 0x80808080u);
}

// v, but with a NaN replaced by codec.h's NaN with the sign in bit 31 of `sign`.
__device__ __forceinline__ float canonical(float v, std::uint32_t sign) {
  return is_nan(v) ? bits_to_float(kQuietNan | (sign & 0x80000000u)) : v;
}

// Eight stored codes. values() multiplies them by their scale, sign() has a code's sign in bit 31.
// A NaN result has arbitrary bits; to_raw() makes it canonical.
struct E4m3Chunk {
  uint2 codes;
  __device__ __forceinline__ void values(float scale, float (&v)[8]) const {
    convert_from_e4m3x2(codes.x & 0xffffu, v[0], v[1]);
    convert_from_e4m3x2(codes.x >> 16, v[2], v[3]);
    convert_from_e4m3x2(codes.y & 0xffffu, v[4], v[5]);
    convert_from_e4m3x2(codes.y >> 16, v[6], v[7]);
    for (int i = 0; i < 8; ++i) v[i] *= scale;
  }
  // Whether no code is NaN: then no product with a finite scale is.
  __device__ __forceinline__ bool numbers() const {
    return (nan_codes(codes.x) | nan_codes(codes.y)) == 0;
  }
  __device__ __forceinline__ std::uint32_t sign(int i) const {
    return (i < 4 ? codes.x : codes.y) << (24 - i % 4 * 8);
  }
};

struct E2m1Chunk {
  std::uint32_t codes;
  __device__ __forceinline__ void values(float scale, float (&v)[8]) const {
    for (int i = 0; i < 8; ++i) {
      // The three magnitude bits, placed at the top of an f32, read as the value times 2^-126.
      const float magnitude = bits_to_float((codes >> (4 * i) & 7u) << 22) * 0x1p126f;
      v[i] = bits_to_float(float_to_bits(magnitude) | (sign(i) & 0x80000000u)) * scale;
    }
  }
  __device__ __forceinline__ std::uint32_t sign(int i) const { return codes << (28 - 4 * i); }

  // Codes times 2^k as bf16; exact, so it equals the f32 product rounded. A byte lookup turns a
  // magnitude into bf16; the high byte includes the sign.
  __device__ __forceinline__ Raw<bf16> scaled(std::uint32_t power /* bf16, twice */) const {
    std::uint32_t words[4];
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t four = codes >> (16 * i);
      const std::uint32_t choice = four & 0x7777u;
      const std::uint32_t low = permute_bytes(0xc0800000u, 0xc0804000u, choice);
      const std::uint32_t high = permute_bytes(0x3f3f3f00u, 0x40404040u, choice);
      const std::uint32_t twice = permute_bytes(four, 0, 0x1100);  // each code's byte, twice
      const std::uint32_t signs = (twice << 4 & 0x00800080u) | (twice & 0x80008000u);
      const std::uint32_t top = high | signs;
      words[2 * i] = multiply_bf16x2(permute_bytes(low, top, 0x5140), power);
      words[2 * i + 1] = multiply_bf16x2(permute_bytes(low, top, 0x7362), power);
    }
    return {{words[0], words[1], words[2], words[3]}};
  }
};

template <class Codes>
__device__ __forceinline__ void make_canonical(const Codes& codes, float (&v)[8]) {
  for (int i = 0; i < 8; ++i) v[i] = canonical(v[i], codes.sign(i));
}

// Converts codes' values to the type of a row.
template <class Codes>
__device__ __forceinline__ void to_raw(const Codes& codes, float (&v)[8], Raw<float>& out) {
  make_canonical(codes, v);
  out = to_raw_f32(v);
}
template <class Codes>
__device__ __forceinline__ void to_raw(const Codes& codes, float (&v)[8], Raw<bf16>& out) {
  make_canonical(codes, v);
  out = to_raw_bf16(v);
}

// Eight f32 without NaN to bf16.
__device__ __forceinline__ Raw<bf16> to_raw_bf16_numbers(const float (&x)[8]) {
  return {{convert_bf16x2(x[0], x[1]), convert_bf16x2(x[2], x[3]), convert_bf16x2(x[4], x[5]),
           convert_bf16x2(x[6], x[7])}};
}

// The largest finite magnitude of eight. fmaxf ignores NaN; infinities are rare and cost a second
// pass.
__device__ __forceinline__ float largest_finite(const float (&x)[8]) {
  float amax = 0;
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x[i]));
  if (amax > 0x1.fffffep127f) {
    amax = 0;
    for (int i = 0; i < 8; ++i) {
      const float a = fabsf(x[i]);
      if (a <= 0x1.fffffep127f) amax = fmaxf(amax, a);
    }
  }
  return amax;
}

// The largest magnitudes of two chunks, as bf16 bits in the low and the high half; 0x7f80 or more
// if a value is not finite.
__device__ __forceinline__ std::uint32_t largest_magnitudes(const Raw<bf16>& low,
                                                            const Raw<bf16>& high) {
  const auto pair = [](const uint4& v) {
    return max_magnitude_bf16x2(max_magnitude_bf16x2(v.x, v.y), max_magnitude_bf16x2(v.z, v.w));
  };
  const std::uint32_t a = pair(low.v);
  const std::uint32_t b = pair(high.v);
  return max_magnitude_bf16x2(permute_bytes(a, b, 0x5410), permute_bytes(a, b, 0x7632)) &
         0x7fff7fffu;
}

// A tile's scale and its reciprocal.
struct TileScale {
  float scale;
  float inverse;
};

// 1 / 2^k, exact: mirrors the exponent.
__device__ __forceinline__ float pow2_inverse(float power) {
  return bits_to_float((254u << 23) - float_to_bits(power));
}

// pow2_ceil(max(amax, floor) / 448) without a division. 448 = 1.75 * 2^8, so the quotient's power
// of two goes up exactly where the mantissa exceeds 0.75. No f32 quotient above a power of two
// rounds down to it, because the nearest one is 2^-23.8 above.
__device__ __forceinline__ TileScale pow2_e4m3_scale(float amax) {
  const std::uint32_t a = float_to_bits(fmaxf(amax, 1e-4f));
  const float s = bits_to_float(((a + 0x1fffffu) & 0x7f800000u) - (8u << 23));
  return {s, pow2_inverse(s)};
}

// pow2_ceil(max(amax / 6, 1e-10)) by the same method: 6 = 1.5 * 2^2; 2^-33 is pow2_ceil(1e-10).
__device__ __forceinline__ TileScale pow2_e2m1_scale(float amax) {
  const std::uint32_t a = float_to_bits(fmaxf(amax, 0x1p-60f));
  const float s = fmaxf(bits_to_float(((a + 0x3fffffu) & 0x7f800000u) - (2u << 23)), 0x1p-33f);
  return {s, pow2_inverse(s)};
}

__device__ __forceinline__ TileScale raw_e4m3_scale(float amax) {
  const float s = fmaxf(amax, 1e-4f) / kE4m3Max;
  return {s, 1.0f / s};
}

template <RunKind kKind>
__device__ __forceinline__ TileScale tile_scale(const RunParams& run, float amax) {
  if constexpr (kKind == RunKind::e2m1_ue8m0) return pow2_e2m1_scale(amax);
  const bool raw = kKind == RunKind::e4m3_f32 && run.raw_scale;
  return raw ? raw_e4m3_scale(amax) : pow2_e4m3_scale(amax);
}

}  // namespace lathe::cuda
