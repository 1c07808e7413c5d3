// The arithmetic of sampling (exponential, logarithm, noise), with the same bits on every device.
//
// Weights decide which token is sampled, so their last bit must not depend on a C library, a SIMD
// target or a GPU. Everything here uses f64 operations that IEEE 754 rounds correctly (+, -, * and,
// in the logarithm, one division), in the order written. It must be compiled without contraction
// to fma (-ffp-contract=off, nvcc --fmad=false), and uses no fma itself: the oldest SIMD targets
// have none. tools/make_sampling_constants.py computes the coefficients.
#pragma once

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/philox.h"

namespace lathe {

namespace sampling {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;
// ln 2 in two parts. The first has so few bits that its product with any f64 exponent is exact.
inline constexpr double kLn2High = 0x1.62e42fefa38p-1;
inline constexpr double kLn2Low = 0x1.ef35793c7673p-45;
// 1.5 * 2^52: x + kRound has the integer nearest to x in its low bits.
inline constexpr double kRound = 0x1.8p+52;
inline constexpr double kLeastExponent = -708;

// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, lowest power first.
inline constexpr double kExp[10] = {
    0x1.0p-1,
    0x1.5555555555501p-3,
    0x1.555555555320bp-5,
    0x1.1111111128846p-7,
    0x1.6c16c17cc173ep-10,
    0x1.a01a011c30cafp-13,
    0x1.a019ab337c7b6p-16,
    0x1.71df552edc5e9p-19,
    0x1.289f83dc5d5fcp-22,
    0x1.ad201db20c538p-26,
};
// (ln((1 + s) / (1 - s)) - 2 s) / s^3 in powers of s^2 for |s| <= 3 - 2 sqrt 2.
inline constexpr double kLog[7] = {
    0x1.5555555555592p-1, 0x1.999999997fd6ep-2, 0x1.24924941f55f9p-2, 0x1.c71c5205c1e65p-3,
    0x1.74663faee43a6p-3, 0x1.39a1a5cdde3fep-3, 0x1.2f063f4398f9bp-3,
};

LATHE_HD inline std::uint64_t bits_of_f64(double x) { return __builtin_bit_cast(std::uint64_t, x); }
LATHE_HD inline double f64_of_bits(std::uint64_t bits) { return __builtin_bit_cast(double, bits); }

}  // namespace sampling

/// e^x for x <= 0, including -inf; 0 below -708. Exactly 1 at 0. Error below 1 ulp (largest seen:
/// 0.92).
LATHE_HD inline double exp_of_nonpositive(double x) {
  using namespace sampling;
  if (!(x >= kLeastExponent)) return 0;
  // x = k ln 2 + r + rest, where `rest` is the rounding error of r.
  const double shifted = x * kLog2E + kRound;
  const double k = shifted - kRound;
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;
  const double rest = (high - r) - low;
  const double r2 = r * r;
  const double r4 = r2 * r2;
  const double q01 = kExp[0] + kExp[1] * r;
  const double q23 = kExp[2] + kExp[3] * r;
  const double q45 = kExp[4] + kExp[5] * r;
  const double q67 = kExp[6] + kExp[7] * r;
  const double q89 = kExp[8] + kExp[9] * r;
  const double q = (q01 + q23 * r2) + r4 * ((q45 + q67 * r2) + q89 * r4);
  const double y = 1 + (r + (rest + q * r2));
  return f64_of_bits(bits_of_f64(y) + (bits_of_f64(shifted) << 52));
}

/// ln x for a positive x that is normal and finite. Error below 1 ulp (largest seen: 0.92).
LATHE_HD inline double log_of_positive(double x) {
  using namespace sampling;
  constexpr std::uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  const auto k = static_cast<std::int64_t>(bits_of_f64(x) - kRootOfHalf) >> 52;
  // x = 2^k (1 + f), sqrt 1/2 <= 1 + f < sqrt 2; s = f / (2 + f) makes it (1 + s) / (1 - s).
  const double f = f64_of_bits(bits_of_f64(x) - (static_cast<std::uint64_t>(k) << 52)) - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  const double z2 = z * z;
  const double p = (kLog[0] + kLog[1] * z) + z2 * (kLog[2] + kLog[3] * z) +
                   (z2 * z2) * ((kLog[4] + kLog[5] * z) + kLog[6] * z2);
  // 2 s = f - s f, so ln(1 + f) = f - half + s (half + z p) with half = f^2 / 2.
  const double half = 0.5 * f * f;
  const double tail = s * (half + z * p) - half;
  const double whole = static_cast<double>(k) * kLn2High;
  const double high = whole + f;
  const double low = f - (high - whole);
  return high + (low + (tail + static_cast<double>(k) * kLn2Low));
}

/// Uniform in (0, 1), a function of (seed, position in the answer, token): the middle of one of
/// 2^52 equal intervals, so never 0 or 1. Tokens 2 i and 2 i + 1 share a call of Philox: the even
/// one uses words 0 and 1, the odd one words 2 and 3, the first of the two as high bits.
LATHE_HD inline double token_noise(std::uint64_t seed, std::uint64_t position, std::int32_t token) {
  const PhiloxWords out =
      philox4x32({{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
                   static_cast<std::uint32_t>(token) / 2,
                   static_cast<std::uint32_t>(PhiloxUse::token_choice)}},
                 seed);
  // A condition, as an index known only at run time would put the words into a GPU's local memory.
  const bool odd = token % 2 != 0;
  const std::uint32_t high = odd ? out.word[2] : out.word[0];
  const std::uint32_t low = odd ? out.word[3] : out.word[1];
  const std::uint64_t bits = std::uint64_t{high} << 32 | low;
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

}  // namespace lathe
