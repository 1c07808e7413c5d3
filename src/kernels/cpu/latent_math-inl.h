// What the SIMD sources of latent attention share. Included once per SIMD target (Highway).
#if defined(LATHE_KERNELS_CPU_LATENT_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_LATENT_MATH_INL_H_
#undef LATHE_KERNELS_CPU_LATENT_MATH_INL_H_
#else
#define LATHE_KERNELS_CPU_LATENT_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/latent_math.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kLatentPad>;
using V = hn::Vec<D>;
using Du = hn::RebindToUnsigned<D>;

HWY_INLINE V exp_of(D d, V x) {
  // Highway's makes a NaN 0.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}
HWY_INLINE float exp_of(float x) {
  const D d;
  return hn::GetLane(exp_of(d, hn::Set(d, x)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_LATENT_MATH_INL_H_
