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
  static constexpr float kFold = 1;
  static HWY_INLINE WeightVec load(const T* p, WeightVec) { return hn::LoadU(WeightTag(), p); }
};

struct Bf16Weights {
  using T = std::uint16_t;
  static constexpr bool kScaled = false;
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
  static constexpr float kFold = 256;
  static HWY_INLINE WeightVec load(const T* p, WeightVec scale) {
    const WeightTag d;
    const hn::Rebind<std::int8_t, WeightTag> d8;
    const hn::Rebind<std::int16_t, WeightTag> d16;
    const auto code = hn::ShiftLeft<7>(hn::PromoteTo(d16, hn::LoadU(d8, p)));
    const auto half = hn::And(code, hn::Set(d16, static_cast<std::int16_t>(0xbf80 - 0x10000)));
    const hn::Rebind<hwy::float16_t, WeightTag> df;
    return hn::Mul(hn::PromoteTo(d, hn::BitCast(df, half)), scale);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
