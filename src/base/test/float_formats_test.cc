// Tests float_formats.h on the host against tables that tools/make_float_tables.py computes without
// it, and against the compiler's _Float16 if it has one.
#include "base/float_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <vector>

namespace lathe {
namespace {

#include "base/float_tables.inc"

constexpr std::uint32_t kSign = 0x80000000u;

// Every function once, in a constant expression on the host.
static_assert(to_f32(bf16{0x3f80}) == 1.0f && to_f32(f16{0x0001}) == kF16Min);
static_assert(to_f32(e4m3{0x7e}) == kE4m3Max && to_f32(e4m3{0x01}) == kE4m3Min);
static_assert(to_f32(e5m2{0xfb}) == -kE5m2Max && to_f32(e5m2{0x01}) == kE5m2Min);
static_assert(to_f32(e2m1{0x7}) == kE2m1Max && to_f32(e2m1{0x1}) == kE2m1Min);
static_assert(to_f32(ue8m0{0}) == kUe8m0Min && to_f32(ue8m0{254}) == kUe8m0Max);
static_assert(to_bf16(kBf16Max) == bf16{0x7f7f} && to_bf16(kBf16Min) == bf16{0x0001});
static_assert(to_f16(kF16Max) == f16{0x7bff});
static_assert(to_e4m3(1e9f) == e4m3{0x7e});
static_assert(to_e5m2(-1e9f) == e5m2{0xfb});
static_assert(to_e2m1(2.5f) == e2m1{0x4});
static_assert(to_ue8m0_ceil(1.5f) == ue8m0{128});
static_assert(pow2_ceil(1.5f) == 2.0f);

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(e4m3) == 1 && sizeof(e5m2) == 1 &&
              sizeof(e2m1) == 1 && sizeof(ue8m0) == 1);

std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

float float_of(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

bool is_nan_bits(std::uint32_t u) { return (u & ~kSign) > 0x7f800000u; }

// NaN of both signs, quiet and signalling, with lowest and highest payload.
constexpr std::uint32_t kNans[] = {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0x7f810000u,
                                   0xff800001u, 0xffbfffffu, 0xffc00000u, 0xffffffffu, 0xff80ffffu};

// Expands a table of runs to one expected code for each bf16 pattern.
template <std::size_t N>
std::vector<std::uint16_t> expand(const EncodeRun (&runs)[N]) {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < N; ++i) {
    const std::uint32_t end = i + 1 < N ? runs[i + 1].first : 65536u;
    for (std::uint32_t x = runs[i].first; x < end; ++x) {
      codes[x] = static_cast<std::uint16_t>(runs[i].code + runs[i].step * (x - runs[i].first));
    }
  }
  return codes;
}

template <std::size_t N, class Encode>
void expect_bf16_encode(const EncodeRun (&runs)[N], Encode encode) {
  const std::vector<std::uint16_t> wanted = expand(runs);
  for (std::uint32_t x = 0; x < 65536; ++x) {
    ASSERT_EQ(encode(float_of(x << 16)).bits, wanted[x]) << "bf16 pattern " << x;
  }
}

TEST(FloatFormats, E4m3DecodesEveryByteAndEncodesItBack) {
  for (std::uint32_t b = 0; b < 256; ++b) {
    const e4m3 code{static_cast<std::uint8_t>(b)};
    ASSERT_EQ(bits_of(to_f32(code)), kE4m3Decode[b]) << b;
    ASSERT_EQ(to_e4m3(to_f32(code)), code) << b;
  }
}

TEST(FloatFormats, E5m2DecodesEveryByteAndEncodesItBack) {
  for (std::uint32_t b = 0; b < 256; ++b) {
    const e5m2 code{static_cast<std::uint8_t>(b)};
    ASSERT_EQ(bits_of(to_f32(code)), kE5m2Decode[b]) << b;
    const std::uint32_t magnitude = b & 0x7fu;
    // Back in e5m2, infinity saturates and the three NaNs become the canonical one.
    const std::uint32_t wanted = magnitude < 0x7cu    ? b
                                 : magnitude == 0x7cu ? (b & 0x80u) | 0x7bu
                                                      : (b & 0x80u) | 0x7fu;
    ASSERT_EQ(to_e5m2(to_f32(code)).bits, wanted) << b;
  }
}

TEST(FloatFormats, E2m1DecodesTheLowNibbleOfEveryByteAndEncodesItBack) {
  for (std::uint32_t b = 0; b < 256; ++b) {
    const float value = to_f32(e2m1{static_cast<std::uint8_t>(b)});
    ASSERT_EQ(bits_of(value), kE2m1Decode[b & 15u]) << b;
    ASSERT_EQ(to_e2m1(value).bits, b & 15u) << b;
  }
}

TEST(FloatFormats, Ue8m0DecodesEveryByteAndEncodesItBack) {
  for (std::uint32_t b = 0; b < 256; ++b) {
    const ue8m0 code{static_cast<std::uint8_t>(b)};
    ASSERT_EQ(bits_of(to_f32(code)), kUe8m0Decode[b]) << b;
    ASSERT_EQ(to_ue8m0_ceil(to_f32(code)), code) << b;
  }
}

TEST(FloatFormats, Bf16DecodesAndEncodesEveryPattern) {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const bf16 code{static_cast<std::uint16_t>(b)};
    ASSERT_EQ(bits_of(to_f32(code)), b << 16) << b;
    const std::uint32_t wanted = is_nan_bits(b << 16) ? (b & 0x8000u) | 0x7fc0u : b;
    ASSERT_EQ(to_bf16(to_f32(code)).bits, wanted) << b;
  }
}

TEST(FloatFormats, F16DecodesAndEncodesEveryPattern) {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const f16 code{static_cast<std::uint16_t>(b)};
    const std::uint32_t sign = (b & 0x8000u) << 16;
    const std::uint32_t exponent = (b >> 10) & 31u;
    const std::uint32_t mantissa = b & 0x3ffu;
    if (exponent < 31) {
      const double base = static_cast<double>(float_of(kF16Segments[exponent].base));
      const double step = static_cast<double>(float_of(kF16Segments[exponent].step));
      const float magnitude = static_cast<float>(base + mantissa * step);
      ASSERT_EQ(bits_of(to_f32(code)), bits_of(magnitude) | sign) << b;
      ASSERT_EQ(to_f16(to_f32(code)), code) << b;
    } else {
      ASSERT_EQ(bits_of(to_f32(code)), sign | (mantissa == 0 ? 0x7f800000u : 0x7fc00000u)) << b;
      ASSERT_EQ(to_f16(to_f32(code)).bits, mantissa == 0 ? b : (b & 0x8000u) | 0x7e00u) << b;
    }
  }
}

TEST(FloatFormats, EveryBf16PatternToE4m3) { expect_bf16_encode(kBf16ToE4m3, to_e4m3); }
TEST(FloatFormats, EveryBf16PatternToE5m2) { expect_bf16_encode(kBf16ToE5m2, to_e5m2); }
TEST(FloatFormats, EveryBf16PatternToE2m1) { expect_bf16_encode(kBf16ToE2m1, to_e2m1); }
TEST(FloatFormats, EveryBf16PatternToF16) { expect_bf16_encode(kBf16ToF16, to_f16); }

TEST(FloatFormats, HardInputs) {
  for (const HardInput& row : kHardInputs) {
    const float x = float_of(row.f32);
    ASSERT_EQ(to_bf16(x).bits, row.bf16) << std::hex << row.f32;
    ASSERT_EQ(to_f16(x).bits, row.f16) << std::hex << row.f32;
    ASSERT_EQ(to_e4m3(x).bits, row.e4m3) << std::hex << row.f32;
    ASSERT_EQ(to_e5m2(x).bits, row.e5m2) << std::hex << row.f32;
    ASSERT_EQ(to_e2m1(x).bits, row.e2m1) << std::hex << row.f32;
    ASSERT_EQ(to_ue8m0_ceil(x).bits, row.ue8m0_ceil) << std::hex << row.f32;

    const float negated = float_of(row.f32 | kSign);
    ASSERT_EQ(to_bf16(negated).bits, row.bf16 | 0x8000u) << std::hex << row.f32;
    ASSERT_EQ(to_f16(negated).bits, row.f16 | 0x8000u) << std::hex << row.f32;
    ASSERT_EQ(to_e4m3(negated).bits, row.e4m3 | 0x80u) << std::hex << row.f32;
    ASSERT_EQ(to_e5m2(negated).bits, row.e5m2 | 0x80u) << std::hex << row.f32;
    ASSERT_EQ(to_e2m1(negated).bits, row.e2m1 | 0x8u) << std::hex << row.f32;
    ASSERT_EQ(to_ue8m0_ceil(negated).bits, 0) << std::hex << row.f32;
  }
}

TEST(FloatFormats, NanGivesTheCanonicalNanWithItsSign) {
  for (const std::uint32_t u : kNans) {
    const float x = float_of(u);
    const std::uint32_t sign = u >> 31;
    EXPECT_EQ(to_bf16(x).bits, (sign << 15) | 0x7fc0u) << std::hex << u;
    EXPECT_EQ(to_f16(x).bits, (sign << 15) | 0x7e00u) << std::hex << u;
    EXPECT_EQ(to_e4m3(x).bits, (sign << 7) | 0x7fu) << std::hex << u;
    EXPECT_EQ(to_e5m2(x).bits, (sign << 7) | 0x7fu) << std::hex << u;
    EXPECT_EQ(to_e2m1(x).bits, 0x7) << std::hex << u;
    EXPECT_EQ(to_ue8m0_ceil(x).bits, 255) << std::hex << u;
    EXPECT_TRUE(is_nan_bits(bits_of(pow2_ceil(x)))) << std::hex << u;
  }
}

TEST(FloatFormats, InfinitySaturatesInTheEightAndFourBitFormatsOnly) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bf16(inf).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-inf).bits, 0xff80);
  EXPECT_EQ(to_f16(inf).bits, 0x7c00);
  EXPECT_EQ(to_f16(-inf).bits, 0xfc00);
  EXPECT_EQ(to_f32(to_e4m3(inf)), kE4m3Max);
  EXPECT_EQ(to_f32(to_e4m3(-inf)), -kE4m3Max);
  EXPECT_EQ(to_f32(to_e5m2(inf)), kE5m2Max);
  EXPECT_EQ(to_f32(to_e5m2(-inf)), -kE5m2Max);
  EXPECT_EQ(to_f32(to_e2m1(inf)), kE2m1Max);
  EXPECT_EQ(to_f32(to_e2m1(-inf)), -kE2m1Max);
  EXPECT_EQ(to_ue8m0_ceil(inf).bits, 254);
  EXPECT_EQ(to_ue8m0_ceil(-inf).bits, 0);
}

TEST(FloatFormats, E2m1TiesGoToTheEvenCode) {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float wanted[] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
  for (std::size_t i = 0; i < std::size(ties); ++i) {
    EXPECT_EQ(to_f32(to_e2m1(ties[i])), wanted[i]) << ties[i];
    EXPECT_EQ(to_f32(to_e2m1(-ties[i])), -wanted[i]) << ties[i];
  }
}

// Every exponent with the lowest, highest and middle mantissas: powers of two and their neighbours.
std::vector<std::uint32_t> ceil_inputs() {
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa :
         {0u, 1u, 2u, 0x200000u, 0x3fffffu, 0x400000u, 0x400001u, 0x7ffffeu, 0x7fffffu}) {
      inputs.push_back((exponent << 23) | mantissa);
    }
  }
  for (std::uint32_t bit = 1; bit < 23; ++bit) {
    inputs.insert(inputs.end(), {(1u << bit) - 1u, 1u << bit, (1u << bit) + 1u});
  }
  return inputs;
}

// log2 of the smallest power of two >= x for finite x > 0, by frexp, which is exact.
int ceil_log2(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);  // x = fraction * 2^exponent, fraction >= 0.5
  return fraction == 0.5f ? exponent - 1 : exponent;
}

TEST(FloatFormats, Ue8m0CeilMatchesFrexp) {
  for (const std::uint32_t u : ceil_inputs()) {
    const float x = float_of(u);
    const int power = u == 0 ? -127 : std::clamp(ceil_log2(x), -127, 127);
    ASSERT_EQ(to_ue8m0_ceil(x).bits, power + 127) << std::hex << u;
    ASSERT_EQ(to_f32(to_ue8m0_ceil(x)), std::ldexp(1.0f, power)) << std::hex << u;
    ASSERT_EQ(to_ue8m0_ceil(-x).bits, 0) << std::hex << u;
  }
}

TEST(FloatFormats, Pow2CeilMatchesFrexp) {
  for (const std::uint32_t u : ceil_inputs()) {
    if (u < 0x00800000u) continue;  // pow2_ceil() does not accept subnormals
    const float x = float_of(u);
    ASSERT_EQ(pow2_ceil(x), std::ldexp(1.0f, ceil_log2(x))) << std::hex << u;
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(pow2_ceil(std::nextafter(0x1p127f, inf)), inf);
  EXPECT_EQ(pow2_ceil(inf), inf);
}

// The floor of amax, 1e-4, and the scale of a tile of zeros.
TEST(FloatFormats, ScaleFloors) {
  EXPECT_EQ(pow2_ceil(1e-4f), 0x1p-13f);
  EXPECT_EQ(to_ue8m0_ceil(1e-4f).bits, 114);
  EXPECT_EQ(to_ue8m0_ceil(1e-4f / kE4m3Max).bits, 105);
}

#ifdef __FLT16_MANT_DIG__
TEST(FloatFormats, F16AgreesWithTheCompiler) {
  const auto check = [](float x) {
    const _Float16 half = static_cast<_Float16>(x);
    std::uint16_t wanted;
    std::memcpy(&wanted, &half, sizeof wanted);
    ASSERT_EQ(to_f16(x).bits, wanted) << std::hex << bits_of(x);
    ASSERT_EQ(bits_of(to_f32(f16{wanted})), bits_of(static_cast<float>(half))) << wanted;
  };
  for (std::uint32_t b = 0; b < 65536; ++b) {
    if (!is_nan_bits(b << 16)) check(float_of(b << 16));
    if ((b & 0x7fffu) <= 0x7c00u) check(to_f32(f16{static_cast<std::uint16_t>(b)}));
  }
  for (const HardInput& row : kHardInputs) {
    check(float_of(row.f32));
    check(float_of(row.f32 | kSign));
  }
  // The odd stride reaches every sign and exponent with varying low mantissa bits.
  std::uint32_t u = 0;
  for (int i = 0; i < 1 << 20; ++i, u += 4093u) {
    if (!is_nan_bits(u)) check(float_of(u));
  }
}
#endif

}  // namespace
}  // namespace lathe
