// Narrow number formats and their conversions to and from f32, for host and device.
//
// Layouts, kernels and tests all follow these definitions. They use integer arithmetic on bit
// patterns, so results do not depend on the rounding mode, flush-to-zero or -ffast-math, and host
// and device give the same bits. Hot kernels may use the hardware's cvt instructions instead, which
// give the same bits for every input except NaN (float_formats_gpu_test.cu compares them).
//
// Formats: OCP Microscaling Formats v1.0 (E4M3, E5M2, E2M1, E8M0) and IEEE 754 binary16.
//
// NaN: a NaN input gives the canonical NaN named below with the input's sign. CUDA's conversions
// give other bits: 0x7fff for bf16 and f16, and the host code of cuda_fp8.hpp drops the sign of a
// float NaN (0x7f). So code that compares bytes of both must treat all NaNs as equal.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LATHE_HD __host__ __device__
#else
#define LATHE_HD
#endif

namespace lathe {

/// bfloat16: 1 sign, 8 exponent (bias 127), 7 mantissa bits; the upper half of an f32.
struct bf16 {
  std::uint16_t bits;
  bool operator==(const bf16&) const = default;
};

/// IEEE binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
struct f16 {
  std::uint16_t bits;
  bool operator==(const f16&) const = default;
};

/// OCP E4M3, the "fn" variant: bias 7, no infinity, NaN is 0x7f and 0xff, maximum 448.
struct e4m3 {
  std::uint8_t bits;
  bool operator==(const e4m3&) const = default;
};

/// OCP E5M2: bias 15, IEEE-like; infinity is 0x7c, NaN is 0x7d to 0x7f, maximum 57344.
struct e5m2 {
  std::uint8_t bits;
  bool operator==(const e5m2&) const = default;
};

/// OCP E2M1 in the low nibble: bit 3 is the sign, bits 0 to 2 select 0 .5 1 1.5 2 3 4 6. It has no
/// infinity and no NaN. Conversions to it set the high nibble to 0; conversions from it ignore it.
struct e2m1 {
  std::uint8_t bits;
  bool operator==(const e2m1&) const = default;
};

/// OCP E8M0, a scale: 2^(bits - 127), 255 is NaN. No sign and no zero: 0 means 2^-127.
struct ue8m0 {
  std::uint8_t bits;
  bool operator==(const ue8m0&) const = default;
};

/// The largest finite value of each format.
inline constexpr float kBf16Max = 0x1.fep127f;
inline constexpr float kF16Max = 65504.0f;
inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE5m2Max = 57344.0f;
inline constexpr float kE2m1Max = 6.0f;
inline constexpr float kUe8m0Max = 0x1p127f;

/// The smallest positive value of each format.
inline constexpr float kBf16Min = 0x1p-133f;
inline constexpr float kF16Min = 0x1p-24f;
inline constexpr float kE4m3Min = 0x1p-9f;
inline constexpr float kE5m2Min = 0x1p-16f;
inline constexpr float kE2m1Min = 0.5f;
inline constexpr float kUe8m0Min = 0x1p-127f;

namespace float_formats_internal {

// To nvcc std::bit_cast is a host function unless --expt-relaxed-constexpr is given. The compiler
// builtin works on both sides.
LATHE_HD constexpr std::uint32_t to_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
LATHE_HD constexpr float from_bits(std::uint32_t u) { return __builtin_bit_cast(float, u); }

inline constexpr std::uint32_t kAbsMask = 0x7fffffffu;
inline constexpr std::uint32_t kF32Inf = 0x7f800000u;
inline constexpr std::uint32_t kF32Nan = 0x7fc00000u;

LATHE_HD constexpr bool is_nan(float x) { return (to_bits(x) & kAbsMask) > kF32Inf; }

// Rounds the f32 magnitude `u` (sign bit clear, not NaN) once, to nearest, ties to even, to a
// format with `kMantissa` mantissa bits and exponent bias `kBias`. Returns the magnitude's code.
// The exponent of the result has no upper limit; the caller applies one. kBias < 127 - kMantissa
// makes every f32 subnormal smaller than half of the format's smallest value, so it rounds to 0.
template <std::uint32_t kMantissa, std::uint32_t kBias>
LATHE_HD constexpr std::uint32_t round_magnitude(std::uint32_t u) {
  static_assert(kMantissa + kBias < 127);
  // Biased f32 exponent of the format's smallest normal number. Below it the format's values are
  // equally spaced, so the shift grows by `below`.
  constexpr std::uint32_t kMinExponent = 128 - kBias;
  const std::uint32_t exponent = u >> 23;
  const std::uint32_t significand = (u & 0x7fffffu) | 0x800000u;
  const std::uint32_t below = exponent < kMinExponent ? kMinExponent - exponent : 0;
  // A shift of 25 rounds every 24-bit significand to 0.
  const std::uint32_t wanted = 23 - kMantissa + below;
  const std::uint32_t shift = wanted < 25 ? wanted : 25;
  const std::uint32_t odd = (significand >> shift) & 1u;
  const std::uint32_t rounded = (significand + ((1u << (shift - 1)) - 1u) + odd) >> shift;
  // `rounded` includes the implicit bit, which adds one to the exponent field. So the lowest
  // exponent adds 0 here, and a carry out of the mantissa increments the exponent by itself.
  return ((exponent + below - kMinExponent) << kMantissa) + rounded;
}

// Value of the magnitude code `code`, which must be finite. Exact.
template <std::uint32_t kMantissa, std::uint32_t kBias>
LATHE_HD constexpr float decode_magnitude(std::uint32_t code) {
  // An integer times a power of two is a normal f32 here, so flush-to-zero cannot change it.
  const float subnormal = static_cast<float>(code) * from_bits((128u - kBias - kMantissa) << 23);
  const float normal = from_bits((code << (23 - kMantissa)) + ((127u - kBias) << 23));
  return (code >> kMantissa) == 0 ? subnormal : normal;
}

LATHE_HD constexpr float with_sign(float magnitude, std::uint32_t sign) {
  return from_bits(to_bits(magnitude) | sign);
}

}  // namespace float_formats_internal

/// Exact value. A NaN keeps its sign and payload, because the conversion is a plain shift.
LATHE_HD constexpr float to_f32(bf16 x) {
  return float_formats_internal::from_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Exact value. NaN gives the quiet f32 NaN 0x7fc00000 with the sign of `x`.
LATHE_HD constexpr float to_f32(f16 x) {
  using namespace float_formats_internal;
  const std::uint32_t code = x.bits & 0x7fffu;
  const float finite = decode_magnitude<10, 15>(code);
  const float special = from_bits(code == 0x7c00u ? kF32Inf : kF32Nan);
  return with_sign(code < 0x7c00u ? finite : special, (x.bits & 0x8000u) << 16);
}

/// Exact value. NaN gives the quiet f32 NaN 0x7fc00000 with the sign of `x`.
LATHE_HD constexpr float to_f32(e4m3 x) {
  using namespace float_formats_internal;
  const std::uint32_t code = x.bits & 0x7fu;
  const float finite = decode_magnitude<3, 7>(code);
  return with_sign(code < 0x7fu ? finite : from_bits(kF32Nan), (x.bits & 0x80u) << 24);
}

/// Exact value. NaN gives the quiet f32 NaN 0x7fc00000 with the sign of `x`.
LATHE_HD constexpr float to_f32(e5m2 x) {
  using namespace float_formats_internal;
  const std::uint32_t code = x.bits & 0x7fu;
  const float finite = decode_magnitude<2, 15>(code);
  const float special = from_bits(code == 0x7cu ? kF32Inf : kF32Nan);
  return with_sign(code < 0x7cu ? finite : special, (x.bits & 0x80u) << 24);
}

/// Exact value of the low nibble; the high nibble is ignored.
LATHE_HD constexpr float to_f32(e2m1 x) {
  using namespace float_formats_internal;
  return with_sign(decode_magnitude<1, 1>(x.bits & 7u), (x.bits & 8u) << 28);
}

/// Exact value. 0 gives 2^-127, an f32 subnormal that flush-to-zero turns into 0. 255 gives the
/// quiet f32 NaN 0x7fc00000.
LATHE_HD constexpr float to_f32(ue8m0 x) {
  using namespace float_formats_internal;
  const std::uint32_t exponent = static_cast<std::uint32_t>(x.bits) << 23;
  return from_bits(x.bits == 0 ? 0x00400000u : x.bits == 255 ? kF32Nan : exponent);
}

/// Rounds to nearest, ties to even. Overflow gives infinity; NaN gives 0x7fc0 | sign. IEEE 754.
LATHE_HD constexpr bf16 to_bf16(float x) {
  using namespace float_formats_internal;
  const std::uint32_t u = to_bits(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = ((u >> 16) & 0x8000u) | 0x7fc0u;
  return bf16{static_cast<std::uint16_t>(is_nan(x) ? nan : rounded)};
}

/// Rounds to nearest, ties to even. Overflow (|x| >= 65520) gives infinity; NaN gives
/// 0x7e00 | sign. IEEE 754.
LATHE_HD constexpr f16 to_f16(float x) {
  using namespace float_formats_internal;
  const std::uint32_t u = to_bits(x);
  const std::uint32_t rounded = round_magnitude<10, 15>(u & kAbsMask);
  const std::uint32_t code = rounded < 0x7c00u ? rounded : 0x7c00u;
  return f16{static_cast<std::uint16_t>(((u >> 16) & 0x8000u) | (is_nan(x) ? 0x7e00u : code))};
}

/// Rounds to nearest, ties to even, and saturates: infinities and values that round above 448 give
/// 448 with the sign. NaN gives 0x7f | sign. Equal to cvt.rn.satfinite.e4m3x2.f32 except for the
/// bits of NaN.
LATHE_HD constexpr e4m3 to_e4m3(float x) {
  using namespace float_formats_internal;
  const std::uint32_t u = to_bits(x);
  const std::uint32_t rounded = round_magnitude<3, 7>(u & kAbsMask);
  const std::uint32_t code = rounded < 0x7eu ? rounded : 0x7eu;
  return e4m3{static_cast<std::uint8_t>(((u >> 24) & 0x80u) | (is_nan(x) ? 0x7fu : code))};
}

/// Rounds to nearest, ties to even, and saturates: infinities and values that round above 57344
/// give 57344 with the sign, so infinity is never stored. NaN gives 0x7f | sign. Equal to
/// cvt.rn.satfinite.e5m2x2.f32 except for the bits of NaN.
LATHE_HD constexpr e5m2 to_e5m2(float x) {
  using namespace float_formats_internal;
  const std::uint32_t u = to_bits(x);
  const std::uint32_t rounded = round_magnitude<2, 15>(u & kAbsMask);
  const std::uint32_t code = rounded < 0x7bu ? rounded : 0x7bu;
  return e5m2{static_cast<std::uint8_t>(((u >> 24) & 0x80u) | (is_nan(x) ? 0x7fu : code))};
}

/// Rounds to nearest, ties to even (0.25 to 0, 0.75 and 1.25 to 1, 1.75 and 2.5 to 2, 3.5 and 5 to
/// 4), and saturates at 6. The format has no NaN: a NaN of either sign becomes +6 (0x7), so check
/// for NaN before. Equal to cvt.rn.satfinite.e2m1x2.f32. Some other programs round ties up (0.25 to
/// 0.5, 1.25 to 1.5, 2.5 to 3, 5 to 6); their bytes differ at ties.
LATHE_HD constexpr e2m1 to_e2m1(float x) {
  using namespace float_formats_internal;
  const std::uint32_t u = to_bits(x);
  const std::uint32_t rounded = round_magnitude<1, 1>(u & kAbsMask);
  const std::uint32_t code = rounded < 7u ? rounded : 7u;
  return e2m1{static_cast<std::uint8_t>(is_nan(x) ? 7u : ((u >> 28) & 8u) | code)};
}

/// The smallest power of two >= x, computed from the exponent and mantissa bits, because
/// ceil(log2f(x)) can be off by one near a power of two. x <= 2^-127, zero and negative x give 0
/// (2^-127). x > 2^127 and +infinity give 254 (2^127, so the scale is smaller than x). NaN of
/// either sign gives 255. Equal to cvt.rp.satfinite.ue8m0x2.f32 for x >= 0; for negative x that
/// instruction converts |x|.
LATHE_HD constexpr ue8m0 to_ue8m0_ceil(float x) {
  using namespace float_formats_internal;
  const std::uint32_t u = to_bits(x);
  const std::uint32_t exponent = (u & kAbsMask) >> 23;
  // 2^-127 is the f32 subnormal 0x400000; larger subnormals round up to 2^-126.
  const std::uint32_t power = exponent == 0 ? 0x400000u : 0u;
  const std::uint32_t rounded = exponent + ((u & 0x7fffffu) > power ? 1u : 0u);
  const std::uint32_t code = rounded < 254u ? rounded : 254u;
  const std::uint32_t negative = u >> 31;
  return ue8m0{static_cast<std::uint8_t>(is_nan(x) ? 255u : negative != 0 ? 0u : code)};
}

/// The smallest power of two >= x, for positive normal x: 1.5 gives 2, and 2 gives 2. x > 2^127
/// gives +infinity. A NaN stays NaN, so a bad maximum cannot become a valid scale. x must not be
/// zero, subnormal or negative: apply the scale's floor first.
LATHE_HD constexpr float pow2_ceil(float x) {
  using namespace float_formats_internal;
  const float power = from_bits((to_bits(x) + 0x7fffffu) & kF32Inf);
  return is_nan(x) ? x : power;
}

}  // namespace lathe
