// A vector of weights widened to f32, per stored format. Included once per SIMD target (Highway).
#include <cstddef>
#include <cstdint>

#if defined(LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
#undef LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
#else
#define LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using WeightTag = hn::CappedTag<float, 16>;
using WeightVec = hn::Vec<WeightTag>;

// load() widens Lanes(WeightTag) weights at p. `scale` multiplies them where kScaled: the block's
// factor times kFold.
struct F32Weights {
  using T = float;
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static HWY_INLINE WeightVec load(const T* p, WeightVec) { return hn::LoadU(WeightTag(), p); }
};

struct Bf16Weights {
  using T = std::uint16_t;
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static HWY_INLINE WeightVec load(const T* p, WeightVec) {
    const WeightTag d;
    const hn::RebindToUnsigned<WeightTag> du;
    const hn::Rebind<std::uint16_t, WeightTag> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
};

struct F16Weights {
  using T = hwy::float16_t;
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static HWY_INLINE WeightVec load(const T* p, WeightVec) {
    const WeightTag d;
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, WeightTag>(), p));
  }
};

// An e4m3 code shifted into an f16 is its value x 2^-8, subnormals included, and f16 widens in
// hardware. 2^8 belongs to the block's factor, so there is one rounding, that of code x factor.
struct E4m3Weights {
  using T = std::int8_t;
  static constexpr bool kScaled = true;
  static constexpr bool kPairs = HWY_TARGET != HWY_SCALAR;
  static constexpr float kFold = 256;

  // Codes to f16, as many as d16 has lanes.
  template <class D16>
  static HWY_INLINE auto halves(D16 d16, const T* p) {
    const hn::Rebind<std::int8_t, D16> d8;
    const auto code = hn::ShiftLeft<7>(hn::PromoteTo(d16, hn::LoadU(d8, p)));
    return hn::And(code, hn::Set(d16, static_cast<std::int16_t>(0xbf80 - 0x10000)));
  }
  static HWY_INLINE WeightVec load(const T* p, WeightVec scale) {
    const WeightTag d;
    const hn::Rebind<hwy::float16_t, WeightTag> df;
    const hn::Rebind<std::int16_t, WeightTag> d16;
    return hn::Mul(hn::PromoteTo(d, hn::BitCast(df, halves(d16, p))), scale);
  }
#if HWY_TARGET != HWY_SCALAR
  // The vectors at p and behind it; half of the integer steps of two load().
  static HWY_INLINE void load_pair(const T* p, WeightVec scale, WeightVec& low, WeightVec& high) {
    const WeightTag d;
    const hn::Rebind<hwy::float16_t, WeightTag> df;
    const hn::Repartition<std::int16_t, WeightTag> d16;
    const hn::Half<decltype(d16)> dh;
    const auto both = halves(d16, p);
    low = hn::Mul(hn::PromoteTo(d, hn::BitCast(df, hn::LowerHalf(dh, both))), scale);
    high = hn::Mul(hn::PromoteTo(d, hn::BitCast(df, hn::UpperHalf(dh, both))), scale);
  }
#endif
};

template <class W>
HWY_INLINE void load_pair(const typename W::T* p, WeightVec scale, WeightVec& low,
                          WeightVec& high) {
  if constexpr (W::kPairs) {
    W::load_pair(p, scale, low, high);
  } else {
    low = W::load(p, scale);
    high = W::load(p + hn::Lanes(WeightTag()), scale);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
