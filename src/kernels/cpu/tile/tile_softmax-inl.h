// The softmax of all CPU attention kernels: 2^x, one step of online softmax, and the fold of two
// partial states. Included once per SIMD target (Highway), so it calls nothing from the standard
// library (see layout/codec/codec_fast-inl.h).
#include <cstddef>
#include <cstring>

#if defined(LATHE_KERNELS_CPU_TILE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_TILE_SOFTMAX_INL_H_
#undef LATHE_KERNELS_CPU_TILE_SOFTMAX_INL_H_
#else
#define LATHE_KERNELS_CPU_TILE_SOFTMAX_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/tile/tile_types.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using TileTag = hn::CappedTag<float, 16>;
using TileVec = hn::Vec<TileTag>;

// 2^x for x <= 0, within 2 ulp; 0 below -126 (no subnormals), exactly 1 at 0; NaN stays NaN.
HWY_INLINE TileVec exp2_below(TileVec x) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const auto whole = hn::Round(x);
  const auto f = hn::Sub(x, whole);
  // The Taylor series of 2^f to degree 7; its error for |f| <= 1/2 is below 6e-9.
  auto y = hn::Set(d, 1.5252733804059841e-05f);
  y = hn::MulAdd(y, f, hn::Set(d, 1.5403530393381608e-04f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.3333558146428443e-03f));
  y = hn::MulAdd(y, f, hn::Set(d, 9.6181291076284772e-03f));
  y = hn::MulAdd(y, f, hn::Set(d, 5.5504108664821580e-02f));
  y = hn::MulAdd(y, f, hn::Set(d, 2.4022650695910072e-01f));
  y = hn::MulAdd(y, f, hn::Set(d, 6.9314718055994531e-01f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, whole), hn::Set(di, 127));
  y = hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Zero(d), y);
}

HWY_INLINE float exp2_below(float x) { return hn::GetLane(exp2_below(hn::Set(TileTag(), x))); }

HWY_INLINE float minus_infinity() { return -__builtin_inff(); }
// The maximum to subtract, or 0 for an empty state: -inf - -inf would be NaN.
HWY_INLINE float finite_base(float max) { return max == minus_infinity() ? 0.0f : max; }

// One step of online softmax over a row of scores [kTile]. Scores begin .. end - 1 count if their
// `valid` is not 0 (null: all count). Replaces them by 2^(s - new max), and the others by 0.
// Returns the factor by which to multiply what was accumulated so far.
HWY_INLINE float softmax_step(float* s, std::size_t begin, std::size_t end, const float* valid,
                              SoftState& state) {
  const TileTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto none = hn::Set(d, minus_infinity());
  auto most = none;
  if (begin == 0 && end == kTile && valid == nullptr) {
    for (std::size_t i = 0; i < kTile; i += lanes) most = hn::Max(most, hn::LoadU(d, s + i));
  } else {
    const auto from = hn::Set(d, static_cast<float>(begin));
    const auto to = hn::Set(d, static_cast<float>(end));
    for (std::size_t i = 0; i < kTile; i += lanes) {
      const auto at = hn::Iota(d, static_cast<float>(i));
      auto in = hn::And(hn::Ge(at, from), hn::Lt(at, to));
      if (valid != nullptr) in = hn::And(in, hn::Ne(hn::LoadU(d, valid + i), hn::Zero(d)));
      const auto x = hn::IfThenElse(in, hn::LoadU(d, s + i), none);
      hn::StoreU(x, d, s + i);
      most = hn::Max(most, x);
    }
  }
  const float tile_max = hn::GetLane(hn::MaxOfLanes(d, most));
  const float max = tile_max > state.max ? tile_max : state.max;
  const float base = finite_base(max);
  const auto shift = hn::Set(d, base);
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < kTile; i += lanes) {
    const auto p = exp2_below(hn::Sub(hn::LoadU(d, s + i), shift));
    hn::StoreU(p, d, s + i);
    sum = hn::Add(sum, p);
  }
  const float factor = max == state.max ? 1.0f : exp2_below(state.max - base);
  state.sum = state.sum * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  state.max = max;
  return factor;
}

// values *= factor
HWY_INLINE void scale_row(float* values, std::size_t n, float factor) {
  const TileTag d;
  const auto f = hn::Set(d, factor);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), f), d, values + i);
  }
}

// Folds the state (part, values_part) into (state, values). If one of them is empty, the result has
// the other's bits.
HWY_INLINE void fold_state(SoftState& state, float* values, SoftState part,
                           const float* values_part, std::size_t n) {
  if (part.sum == 0) return;
  if (state.sum == 0) {
    state = part;
    std::memcpy(values, values_part, n * sizeof(float));
    return;
  }
  const TileTag d;
  const float max = part.max > state.max ? part.max : state.max;
  const float base = finite_base(max);
  const float a = max == state.max ? 1.0f : exp2_below(state.max - base);
  const float b = max == part.max ? 1.0f : exp2_below(part.max - base);
  const auto fa = hn::Set(d, a);
  const auto fb = hn::Set(d, b);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::Mul(hn::LoadU(d, values + i), fa);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, values_part + i), fb, x), d, values + i);
  }
  state.sum = state.sum * a + part.sum * b;
  state.max = max;
}

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_TILE_SOFTMAX_INL_H_
