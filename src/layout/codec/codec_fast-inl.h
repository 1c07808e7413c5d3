// SIMD conversions between bf16 or f32 rows and e4m3 or e2m1 codes, for codec_fast.cc and
// rope_write's fast path. Included once per SIMD target (Highway). Every function gives the bits of
// codec_ref.cc.
//
// Counts n are multiples of 16 elements (CacheLayout::make() ensures it). Pointers need no
// alignment. Do not call the standard library here: the linker keeps one copy of each of its inline
// functions, which may be compiled for a target that the machine does not have.
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(LATHE_LAYOUT_CODEC_FAST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_LAYOUT_CODEC_FAST_INL_H_
#undef LATHE_LAYOUT_CODEC_FAST_INL_H_
#else
#define LATHE_LAYOUT_CODEC_FAST_INL_H_
#endif

#include "base/float_formats.h"
#include "hwy/highway.h"
#include "layout/layout.h"

// The single-lane target has no byte shuffles; codec_fast.cc uses the reference there.
#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#define LATHE_LAMBDA HWY_ATTR __attribute__((always_inline))

// Calls f(d, i) for consecutive blocks of Lanes(d) u16 elements that cover n, a multiple of 16.
template <class F>
HWY_INLINE void for_blocks(std::size_t n, F f) {
  const hn::ScalableTag<std::uint16_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) f(d, i);
  if (lanes > 16) {
    for (; i < n; i += 16) f(hn::CappedTag<std::uint16_t, 16>(), i);
  }
}

// A float's bits, and the float of bits.
HWY_INLINE std::uint32_t bits_of_float(float x) { return __builtin_bit_cast(std::uint32_t, x); }
HWY_INLINE float float_of_bits(std::uint32_t u) { return __builtin_bit_cast(float, u); }

// ---------------------------------------------------------------- rounding to bf16

// Rounds f32 bits to nearest even at bit 16. The low half of the result is garbage. A NaN is
// allowed only if its low half and bit 16 are zero.
template <class V>
HWY_INLINE V round_to_high_half(V u) {
  const hn::DFromV<V> d;
  const V odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1u));
  return hn::Add(hn::Add(u, hn::Set(d, 0x7fffu)), odd);
}

// The same for any f32: a NaN becomes 0x7fc0 | sign in the high half.
template <class V>
HWY_INLINE V round_any_to_high_half(V u) {
  const hn::DFromV<V> d;
  const hn::RebindToSigned<decltype(d)> di;
  const V magnitude = hn::And(u, hn::Set(d, 0x7fffffffu));
  const auto nan = hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000)));
  const V quiet = hn::Or(hn::AndNot(hn::Set(d, 0x7fffffffu), u), hn::Set(d, 0x7fc00000u));
  return hn::IfThenElse(nan, quiet, round_to_high_half(u));
}

HWY_INLINE void copy_values(const std::uint16_t* HWY_RESTRICT from, std::size_t n,
                            std::uint16_t* HWY_RESTRICT to) {
  std::memcpy(to, from, 2 * n);
}

HWY_INLINE void copy_values(const float* HWY_RESTRICT from, std::size_t n,
                            std::uint16_t* HWY_RESTRICT to) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto u = hn::BitCast(d, hn::LoadU(hn::RebindToFloat<decltype(d)>(), from + i));
    const auto high = hn::ShiftRight<16>(round_any_to_high_half(u));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, to + i);
  }
}

HWY_INLINE void copy_values(const std::uint16_t* HWY_RESTRICT from, std::size_t n,
                            float* HWY_RESTRICT to) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::RebindToFloat<decltype(d)> df;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto w = hn::PromoteTo(d, hn::LoadU(d16, from + i));
    hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(w)), df, to + i);
  }
}

HWY_INLINE void copy_values(const float* HWY_RESTRICT from, std::size_t n, float* HWY_RESTRICT to) {
  std::memcpy(to, from, 4 * n);
}

// ---------------------------------------------------------------- decoding e4m3

// Whether scaling by this power of two, 2^-111 to 2^113, only adds to the exponent bits of each
// code's bf16 value: all results are normal numbers.
HWY_INLINE bool shifts_exponents(float scale) {
  const std::uint32_t u = bits_of_float(scale);
  return (u & 0x807fffffu) == 0 && (u >> 23) >= 16 && (u >> 23) <= 240;
}
// What to add to a bf16's bits to multiply it by the scale.
HWY_INLINE std::uint16_t exponent_shift(float scale) {
  return static_cast<std::uint16_t>(((bits_of_float(scale) >> 23) - 127u) << 7);
}
HWY_INLINE bool is_finite(float scale) {
  return (bits_of_float(scale) & 0x7f800000u) != 0x7f800000u;
}

// Converts e4m3 codes in u16 lanes to the bf16 bits of value * 2^k, for a fixed k.
template <class D>
class E4m3ToBf16 {
 public:
  using V = hn::VFromD<D>;
  HWY_INLINE E4m3ToBf16(D d, std::uint16_t shift) {
    // m * 2^-9 for m = 0 .. 7, the codes with exponent field 0.
    alignas(16) static constexpr std::uint16_t kSmall[8] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                            0x3c00, 0x3c20, 0x3c40, 0x3c60};
    alignas(16) static constexpr std::uint16_t kIsValue[8] = {0,      0xffff, 0xffff, 0xffff,
                                                              0xffff, 0xffff, 0xffff, 0xffff};
    const V k = hn::Set(d, shift);
    small_ = hn::Add(hn::LoadDup128(d, kSmall), hn::And(hn::LoadDup128(d, kIsValue), k));
    // bf16 has four more mantissa bits, and its exponent bias is larger by 120.
    base_ = hn::Add(hn::Set(d, std::uint16_t{120 << 7}), k);
  }

  HWY_INLINE V operator()(D d, V code) const {
    const V magnitude = hn::And(code, hn::Set(d, std::uint16_t{0x7f}));
    const V normal = hn::Add(hn::ShiftLeft<4>(magnitude), base_);
    // Indices of bytes 2m and 2m + 1 in the table.
    const V m = hn::And(code, hn::Set(d, std::uint16_t{7}));
    const V index =
        hn::Add(hn::Mul(m, hn::Set(d, std::uint16_t{0x0202})), hn::Set(d, std::uint16_t{0x0100}));
    const V small = hn::TableLookupBytes(small_, index);
    const hn::RebindToSigned<D> di;
    const auto is_small =
        hn::RebindMask(d, hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, std::int16_t{8})));
    const auto is_nan = hn::Eq(magnitude, hn::Set(d, std::uint16_t{0x7f}));
    const V value = hn::IfThenElse(is_nan, hn::Set(d, std::uint16_t{0x7fc0}),
                                   hn::IfThenElse(is_small, small, normal));
    return hn::Or(value, hn::And(hn::ShiftLeft<8>(code), hn::Set(d, std::uint16_t{0x8000})));
  }

 private:
  V small_;
  V base_;
};

template <class D>
HWY_INLINE hn::VFromD<D> load_codes(D d, const std::uint8_t* codes) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<std::uint8_t, D>(), codes));
}

// Multiplies bf16 bits by a finite scale and rounds to bf16. Even and odd lanes are computed
// separately, so nothing crosses lanes. A NaN in `w` is 0x7fc0 | sign and stays as it is.
template <class D>
HWY_INLINE hn::VFromD<D> scale_bf16(D d, hn::VFromD<D> w, float scale) {
  const hn::RepartitionToWide<D> d32;
  const hn::RebindToFloat<decltype(d32)> df;
  const auto s = hn::Set(df, scale);
  const auto pairs = hn::BitCast(d32, w);
  const auto even = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
  const auto odd = hn::BitCast(df, hn::And(pairs, hn::Set(d32, 0xffff0000u)));
  const auto r0 = round_to_high_half(hn::BitCast(d32, hn::Mul(even, s)));
  const auto r1 = round_to_high_half(hn::BitCast(d32, hn::Mul(odd, s)));
  return hn::OddEven(hn::BitCast(d, r1), hn::BitCast(d, hn::ShiftRight<16>(r0)));
}

// Stores bf16 bits times a finite scale as f32.
template <class D>
HWY_INLINE void store_scaled(D, hn::VFromD<D> w, float scale, float* to) {
  const hn::RepartitionToWide<D> d32;
  const hn::RebindToFloat<decltype(d32)> df;
  const hn::Half<D> dh;
  const auto s = hn::Set(df, scale);
  const auto low = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LowerHalf(dh, w)));
  const auto high = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::UpperHalf(dh, w)));
  hn::StoreU(hn::Mul(hn::BitCast(df, low), s), df, to);
  hn::StoreU(hn::Mul(hn::BitCast(df, high), s), df, to + hn::Lanes(df));
}

// The scale must be finite.
HWY_INLINE void decode_e4m3(const std::uint8_t* HWY_RESTRICT codes, std::size_t n, float scale,
                            std::uint16_t* HWY_RESTRICT to) {
  if (shifts_exponents(scale)) {
    const std::uint16_t shift = exponent_shift(scale);
    for_blocks(n, [&](auto d, std::size_t i) LATHE_LAMBDA {
      const E4m3ToBf16<decltype(d)> convert(d, shift);
      hn::StoreU(convert(d, load_codes(d, codes + i)), d, to + i);
    });
    return;
  }
  for_blocks(n, [&](auto d, std::size_t i) LATHE_LAMBDA {
    const E4m3ToBf16<decltype(d)> convert(d, 0);
    hn::StoreU(scale_bf16(d, convert(d, load_codes(d, codes + i)), scale), d, to + i);
  });
}

HWY_INLINE void decode_e4m3(const std::uint8_t* HWY_RESTRICT codes, std::size_t n, float scale,
                            float* HWY_RESTRICT to) {
  for_blocks(n, [&](auto d, std::size_t i) LATHE_LAMBDA {
    const E4m3ToBf16<decltype(d)> convert(d, 0);
    store_scaled(d, convert(d, load_codes(d, codes + i)), scale, to + i);
  });
}

// ---------------------------------------------------------------- decoding e2m1

HWY_INLINE void store_e2m1_half(hn::FixedTag<std::uint16_t, 8> d,
                                hn::VFromD<hn::FixedTag<std::uint16_t, 8>> w, float scale,
                                std::uint16_t* to) {
  if (!shifts_exponents(scale)) return hn::StoreU(scale_bf16(d, w, scale), d, to);
  const auto zero = hn::Eq(hn::Add(w, w), hn::Zero(d));  // w + w shifts the sign out
  const auto moved = hn::Add(w, hn::Set(d, exponent_shift(scale)));
  hn::StoreU(hn::IfThenElse(zero, w, moved), d, to);
}
HWY_INLINE void store_e2m1_half(hn::FixedTag<std::uint16_t, 8> d,
                                hn::VFromD<hn::FixedTag<std::uint16_t, 8>> w, float scale,
                                float* to) {
  store_scaled(d, w, scale, to);
}

// Decodes 8 bytes to 16 values, low nibble first. The scale must be finite.
template <class T>
HWY_INLINE void decode_e2m1_16(const std::uint8_t* HWY_RESTRICT pairs, float scale,
                               T* HWY_RESTRICT to) {
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::FixedTag<std::uint8_t, 16> d8;
  // Bytes of the bf16 values 0 .5 1 1.5 2 3 4 6, and of their negatives.
  alignas(16) static constexpr std::uint8_t kLow[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                                        0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
  alignas(16) static constexpr std::uint8_t kHigh[16] = {
      0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  const auto w = hn::PromoteTo(d16, hn::LoadU(hn::FixedTag<std::uint8_t, 8>(), pairs));
  const auto low_nibble = hn::And(w, hn::Set(d16, std::uint16_t{15}));
  const auto high_nibble = hn::ShiftLeft<8>(hn::ShiftRight<4>(w));
  const auto codes = hn::BitCast(d8, hn::Or(low_nibble, high_nibble));
  const auto low = hn::TableLookupBytes(hn::Load(d8, kLow), codes);
  const auto high = hn::TableLookupBytes(hn::Load(d8, kHigh), codes);
  store_e2m1_half(d16, hn::BitCast(d16, hn::InterleaveLower(d8, low, high)), scale, to);
  store_e2m1_half(d16, hn::BitCast(d16, hn::InterleaveUpper(d8, low, high)), scale, to + 8);
}

// ---------------------------------------------------------------- encoding

struct E4m3Code {
  static constexpr int kMantissa = 3;
  static constexpr std::uint32_t kBias = 7;
  static constexpr float kMax = 448.0f;
  static constexpr std::uint16_t kNan = 0x7f;
  static constexpr int kSignBit = 7;
  static constexpr bool kNanKeepsSign = true;
};

struct E2m1Code {
  static constexpr int kMantissa = 1;
  static constexpr std::uint32_t kBias = 1;
  static constexpr float kMax = 6.0f;
  static constexpr std::uint16_t kNan = 7;
  static constexpr int kSignBit = 3;
  static constexpr bool kNanKeepsSign = false;
};

// Magnitude codes of y >= 0 in u32 lanes; garbage for NaN. It adds a power of two such that the
// sum's last place is the format's spacing at y. This rounds y to a multiple of the spacing, to
// nearest even, and the multiple is in the low bits of the sum. Below the smallest normal exponent
// the spacing is constant, so subnormals need no special case.
template <class Format, class DF>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<DF>> magnitude_code(DF df, hn::VFromD<DF> y) {
  const hn::RebindToUnsigned<DF> du;
  constexpr int kDrop = 23 - Format::kMantissa;
  constexpr std::uint32_t kMinExponent = 128 - Format::kBias;
  const auto limited = hn::Min(y, hn::Set(df, Format::kMax));
  const auto own = hn::And(limited, hn::BitCast(df, hn::Set(du, 0x7f800000u)));
  const auto exponent =
      hn::BitCast(du, hn::Max(own, hn::BitCast(df, hn::Set(du, kMinExponent << 23))));
  const auto magic = hn::Add(exponent, hn::Set(du, static_cast<std::uint32_t>(kDrop) << 23));
  const auto sum = hn::BitCast(du, hn::Add(limited, hn::BitCast(df, magic)));
  const auto multiple = hn::Sub(sum, magic);
  const auto steps =
      hn::Sub(hn::ShiftRight<kDrop>(exponent), hn::Set(du, kMinExponent << Format::kMantissa));
  return hn::Add(multiple, steps);
}

// Adds the sign bit and the NaN code. `sign` has the sign at its place, `nan` is a mask; lanes of
// T.
template <class Format, class D, class M>
HWY_INLINE hn::VFromD<D> finish_code(D d, hn::VFromD<D> code, hn::VFromD<D> sign, M nan) {
  const auto kNan = hn::Set(d, hn::TFromD<D>{Format::kNan});
  if constexpr (Format::kNanKeepsSign) return hn::Or(hn::IfThenElse(nan, kNan, code), sign);
  return hn::IfThenElse(nan, kNan, hn::Or(code, sign));
}

// Stores the codes of x[i] * inverse, one per byte.
template <class Format>
HWY_INLINE void encode_codes(const std::uint16_t* HWY_RESTRICT from, std::size_t n, float inverse,
                             std::uint8_t* HWY_RESTRICT codes) {
  for_blocks(n, [&](auto d, std::size_t i) LATHE_LAMBDA {
    using D = decltype(d);
    const hn::RebindToSigned<D> di;
    const hn::RepartitionToWide<D> d32;
    const hn::RebindToFloat<decltype(d32)> df;
    const hn::Rebind<std::uint8_t, D> d8;
    const auto inv = hn::Set(df, inverse);
    const auto x = hn::LoadU(d, from + i);
    const auto magnitude = hn::And(x, hn::Set(d, std::uint16_t{0x7fff}));
    const auto pairs = hn::BitCast(d32, magnitude);
    const auto even = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
    const auto odd = hn::BitCast(df, hn::And(pairs, hn::Set(d32, 0xffff0000u)));
    const auto code_even = magnitude_code<Format>(df, hn::Mul(even, inv));
    const auto code_odd = magnitude_code<Format>(df, hn::Mul(odd, inv));
    const auto code =
        hn::OddEven(hn::BitCast(d, hn::ShiftLeft<16>(code_odd)), hn::BitCast(d, code_even));
    const auto nan =
        hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, std::int16_t{0x7f80})));
    const auto sign = hn::And(hn::ShiftRight<15 - Format::kSignBit>(x),
                              hn::Set(d, std::uint16_t{1u << Format::kSignBit}));
    const auto done = finish_code<Format>(d, code, sign, nan);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, done)), d8, codes + i);
  });
}

template <class Format>
HWY_INLINE void encode_codes(const float* HWY_RESTRICT from, std::size_t n, float inverse,
                             std::uint8_t* HWY_RESTRICT codes) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToFloat<decltype(d)> df;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const auto inv = hn::Set(df, inverse);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::BitCast(d, hn::LoadU(df, from + i));
    const auto magnitude = hn::And(x, hn::Set(d, 0x7fffffffu));
    const auto code = magnitude_code<Format>(df, hn::Mul(hn::BitCast(df, magnitude), inv));
    const auto nan = hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000)));
    const auto sign = hn::And(hn::ShiftRight<31 - Format::kSignBit>(x),
                              hn::Set(d, std::uint32_t{1u << Format::kSignBit}));
    const auto done = finish_code<Format>(d, code, sign, nan);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, done)), d8, codes + i);
  }
}

// Encodes 16 values to 8 bytes, low nibble first.
template <class T>
HWY_INLINE void encode_e2m1_16(const T* HWY_RESTRICT from, float inverse,
                               std::uint8_t* HWY_RESTRICT pairs) {
  alignas(16) std::uint8_t codes[16];
  encode_codes<E2m1Code>(from, 16, inverse, codes);
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::FixedTag<std::int16_t, 8> di;
  const hn::FixedTag<std::uint8_t, 8> d8;
  const auto w = hn::BitCast(d16, hn::Load(hn::FixedTag<std::uint8_t, 16>(), codes));
  const auto packed = hn::And(hn::Or(w, hn::ShiftRight<4>(w)), hn::Set(d16, std::uint16_t{255}));
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, packed)), d8, pairs);
}

// ---------------------------------------------------------------- amax

// The bits of each bf16's magnitude; 0 if it is not finite.
template <class D>
HWY_INLINE hn::VFromD<D> finite_magnitude(D d, const std::uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::And(hn::LoadU(du, from), hn::Set(du, std::uint16_t{0x7fff}));
  const auto magnitude = hn::BitCast(d, bits);
  return hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(d, std::int16_t{0x7f80})), magnitude);
}

// Largest finite bf16 magnitude of n values, as bits. n is a multiple of Lanes(d).
template <class D>
HWY_INLINE std::uint32_t largest_bits(D d, const std::uint16_t* from, std::size_t n) {
  auto most = finite_magnitude(d, from);
  for (std::size_t i = hn::Lanes(d); i < n; i += hn::Lanes(d)) {
    most = hn::Max(most, finite_magnitude(d, from + i));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, most)));
}

// Largest finite magnitude; 0 if no value is finite.
HWY_INLINE float largest_finite(const std::uint16_t* from, std::size_t n) {
  const hn::ScalableTag<std::int16_t> d;
  const std::size_t whole = n / hn::Lanes(d) * hn::Lanes(d);
  std::uint32_t most = whole == 0 ? 0 : largest_bits(d, from, whole);
  if (whole != n) {
    const std::uint32_t rest =
        largest_bits(hn::CappedTag<std::int16_t, 16>(), from + whole, n - whole);
    most = most > rest ? most : rest;
  }
  return float_of_bits(most << 16);
}

HWY_INLINE float largest_finite(const float* from, std::size_t n) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::RebindToFloat<decltype(d)> df;
  auto most = hn::Zero(df);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto magnitude = hn::Abs(hn::LoadU(df, from + i));
    const auto finite = hn::Lt(hn::BitCast(d, magnitude), hn::Set(d, 0x7f800000));
    most = hn::Max(most, hn::IfThenElseZero(hn::RebindMask(df, finite), magnitude));
  }
  return hn::GetLane(hn::MaxOfLanes(df, most));
}

// Scales of tiles from their amax, like tile_scale() in codec_plan.h.
template <class D>
HWY_INLINE hn::VFromD<D> tile_scales(D d, hn::VFromD<D> amax, bool fp4, bool to_power) {
  const hn::RebindToUnsigned<D> du;
  const auto s = fp4 ? hn::Max(hn::Div(amax, hn::Set(d, kE2m1Max)), hn::Set(d, kFp4ScaleFloor))
                     : hn::Div(hn::Max(amax, hn::Set(d, kAmaxFloor)), hn::Set(d, kE4m3Max));
  if (!to_power) return s;
  const auto up = hn::Add(hn::BitCast(du, s), hn::Set(du, 0x7fffffu));
  return hn::BitCast(d, hn::And(up, hn::Set(du, 0x7f800000u)));
}

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // LATHE_LAYOUT_CODEC_FAST_INL_H_
