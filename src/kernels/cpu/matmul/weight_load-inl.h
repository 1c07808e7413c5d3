// Loads weights of each stored format as vectors of f32. Included once per SIMD target (Highway).
#include <cstddef>
#include <cstdint>

#if defined(LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
#undef LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
#else
#define LATHE_KERNELS_CPU_WEIGHT_LOAD_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/matmul/matmul_slice.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using WeightTag = hn::CappedTag<float, 16>;
using WeightVec = hn::Vec<WeightTag>;

// Formats that are stored element by element. At points to elements; kLine of them fill a cache
// line.
template <class Element>
struct PlainWeights {
  using T = Element;
  using At = const T*;
  static constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  static constexpr int kVectors = 1;  // vectors that are widened together
  // Whether prefetching follows streams_through_first_level(). Formats that take longer to widen
  // always use the second-level cache.
  static constexpr bool kChoosesLevel = sizeof(T) > 1;
  static HWY_INLINE At at(const WeightView& w) { return reinterpret_cast<At>(w.data); }
  static HWY_INLINE const void* address(At p) { return p; }
};

// load() widens the Lanes(WeightTag) weights at p. If kScaled, it multiplies them by `scale`, the
// block's scale times kFold.
struct F32Weights : PlainWeights<float> {
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static HWY_INLINE WeightVec load(const T* p, WeightVec) { return hn::LoadU(WeightTag(), p); }
};

struct Bf16Weights : PlainWeights<std::uint16_t> {
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

struct F16Weights : PlainWeights<hwy::float16_t> {
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static HWY_INLINE WeightVec load(const T* p, WeightVec) {
    const WeightTag d;
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, WeightTag>(), p));
  }
};

// An e4m3 code shifted into an f16 is its value x 2^-8, subnormals included, and the hardware
// widens f16. The factor 2^8 is part of the scale (kFold), so there is one rounding: code x scale.
struct E4m3Weights : PlainWeights<std::int8_t> {
  static constexpr bool kScaled = true;
  static constexpr bool kPairs = HWY_TARGET != HWY_SCALAR;
  static constexpr float kFold = 256;

  // Widens codes to f16, one per lane of d16.
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
  // Loads two consecutive vectors, with half of the integer instructions of two load().
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

// MXFP4. A vector of 32-bit words holds kVectors vectors of weights: vector j is the j-th nibble of
// every word. Its lane i is element kVectors * i + j of the step, so the four lanes of a block of
// 32 share a scale. Scales are powers of two, so products with them are exact.
struct E2m1Weights {
  using At = MxAt;
  using U32 = hn::RebindToUnsigned<WeightTag>;
  static constexpr std::int64_t kLine = 128;
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static constexpr bool kChoosesLevel = false;
  static constexpr int kVectors = 8;
  static constexpr auto kStep = static_cast<std::int64_t>(kVectors * hn::MaxLanes(WeightTag()));
  static_assert(kStep <= kMxStep);

  static HWY_INLINE At at(const WeightView& w) { return mx_at(w); }
  static HWY_INLINE const void* address(At p) { return p.codes; }

  struct Step {
    hn::Vec<U32> words;
    WeightVec scale;
    HWY_INLINE WeightVec vector(int j) const {
      return hn::Mul(widen(hn::ShiftRightSame(words, 4 * j)), scale);
    }
  };
  static HWY_INLINE Step load(At p) {
    return {hn::LoadU(U32(), reinterpret_cast<const std::uint32_t*>(p.codes)),
            scales(p.scales, kStep > kMxBlock ? kStep / kMxBlock : 1)};
  }
  // Loads the first n elements (whole blocks) and zeros after them. Reads nothing else.
  static HWY_INLINE Step load(At p, std::int64_t n) {
    const U32 du;
    const auto exist = hn::FirstN(du, static_cast<std::size_t>(n / kVectors));
    return {hn::MaskedLoad(exist, du, reinterpret_cast<const std::uint32_t*>(p.codes)),
            scales(p.scales, n / kMxBlock)};
  }

 private:
  // Widens the low nibble of every word; ignores the bits above it.
  static HWY_INLINE WeightVec widen(hn::Vec<U32> words) {
    const WeightTag d;
    const U32 du;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    HWY_ALIGN static constexpr float kValues[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    (void)du;
    return WeightVec{_mm512_permutexvar_ps(words.raw, hn::Load(d, kValues).raw)};
#else
    const auto sign = hn::And(hn::ShiftLeft<28>(words), hn::Set(du, 0x80000000u));
#if HWY_TARGET == HWY_AVX2
    HWY_ALIGN static constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const WeightVec size{_mm256_permutevar8x32_ps(hn::Load(d, kValues).raw, words.raw)};
#else
    // Values >= 1 have an exponent and one mantissa bit; 0 and 0.5 are multiples of 0.5.
    const auto code = hn::And(words, hn::Set(du, 7));
    const hn::RebindToSigned<WeightTag> di;
    const auto halves = hn::ConvertTo(d, hn::BitCast(di, code));
    const auto large = hn::BitCast(d, hn::Add(hn::ShiftLeft<22>(code), hn::Set(du, 126u << 23)));
    const auto size =
        hn::IfThenElse(hn::Lt(halves, hn::Set(d, 2.0f)), hn::Mul(halves, hn::Set(d, 0.5f)), large);
#endif
    return hn::Or(size, hn::BitCast(d, sign));
#endif
  }
  // Loads the scales of `blocks` consecutive blocks, each into its four lanes, and 0 after them.
  static HWY_INLINE WeightVec scales(const std::uint8_t* p, std::int64_t blocks) {
    const WeightTag d;
    const U32 du;
    if constexpr (kStep <= kMxBlock) {
      return hn::BitCast(d, hn::Set(du, static_cast<std::uint32_t>(*p) << 23));
    } else {
      std::uint32_t codes = 0;
      __builtin_memcpy(&codes, p, static_cast<std::size_t>(blocks));
      HWY_ALIGN static constexpr std::uint32_t kShifts[16] = {24, 24, 24, 24, 16, 16, 16, 16,
                                                              8,  8,  8,  8,  0,  0,  0,  0};
      const auto top =
          hn::And(hn::Set(du, codes) << hn::Load(du, kShifts), hn::Set(du, 0xff000000u));
      return hn::BitCast(d, hn::ShiftRight<1>(top));
    }
  }
};

// Formats with scales of groups of whole words, eight codes each. Vector j is the j-th nibble of
// every word, as in E2m1Weights.
struct GroupedWeights {
  using At = GroupAt;
  using U32 = hn::RebindToUnsigned<WeightTag>;
  static constexpr std::int64_t kLine = 128;
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = false;
  static constexpr float kFold = 1;
  static constexpr bool kChoosesLevel = false;
  static constexpr int kVectors = 8;
  static constexpr auto kStep = static_cast<std::int64_t>(kVectors * hn::MaxLanes(WeightTag()));
  static_assert(kStep <= kMxStep);

  static HWY_INLINE At at(const WeightView& w) { return group_at(w); }
  static HWY_INLINE const void* address(At p) { return p.codes; }

 protected:
  // The words of the first n elements, and zeros after them. Reads nothing else.
  static HWY_INLINE hn::Vec<U32> words(At p, std::int64_t n) {
    const U32 du;
    const auto exist = hn::FirstN(du, static_cast<std::size_t>(n / kVectors));
    return hn::MaskedLoad(exist, du, reinterpret_cast<const std::uint32_t*>(p.codes));
  }
  // Lane i is value(group of word i), for the first n elements; 0 after them.
  template <class Value>
  static HWY_INLINE WeightVec by_group(At p, std::int64_t n, const Value& value) {
    HWY_ALIGN float lanes[16] = {};
    const std::int64_t size = p.groups->size;
    for (std::int64_t k = 0; k < n;) {
      const std::int64_t group = (p.element + k) / size;
      const std::int64_t end =
          (group + 1) * size - p.element < n ? (group + 1) * size - p.element : n;
      const float v = value(group);
      for (; k < end; k += kVectors) lanes[k / kVectors] = v;
    }
    return hn::Load(WeightTag(), lanes);
  }
};

// int4: (code - zero) * scale.
struct U4Weights : GroupedWeights {
  struct Step {
    hn::Vec<U32> words;
    WeightVec scale, zero;
    HWY_INLINE WeightVec vector(int j) const {
      const WeightTag d;
      const U32 du;
      const hn::RebindToSigned<WeightTag> di;
      const auto code = hn::And(hn::ShiftRightSame(words, 4 * j), hn::Set(du, 15));
      return hn::Mul(hn::Sub(hn::ConvertTo(d, hn::BitCast(di, code)), zero), scale);
    }
  };
  static HWY_INLINE Step load(At p) { return load(p, kStep); }
  static HWY_INLINE Step load(At p, std::int64_t n) {
    const GroupScales& g = *p.groups;
    const auto scale = [&](std::int64_t i) { return u4_scale(g, i); };
    const auto zero = [&](std::int64_t i) {
      return static_cast<float>(g.zeros == nullptr ? kU4Zero : g.zeros[i]);
    };
    return {words(p, n), by_group(p, n, scale), by_group(p, n, zero)};
  }
};

// NVFP4: code * scale. The matrix's factor multiplies the sums.
struct NvWeights : GroupedWeights {
  using Step = E2m1Weights::Step;
  static HWY_INLINE Step load(At p) { return load(p, kStep); }
  static HWY_INLINE Step load(At p, std::int64_t n) {
    const auto* scales = reinterpret_cast<const std::uint8_t*>(p.groups->data);
    return {words(p, n), by_group(p, n, [&](std::int64_t i) { return e4m3_value(scales[i]); })};
  }
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
