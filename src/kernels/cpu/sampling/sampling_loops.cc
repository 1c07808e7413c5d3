#include "kernels/cpu/sampling/sampling_loops.h"

#include <cmath>
#include <limits>

#include "kernels/sampling.h"
#include "kernels/sampling_math.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sampling/sampling_loops.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using U64 = hn::ScalableTag<std::uint64_t>;
using F64Vec = hn::Vec<F64>;
using F64Mask = hn::Mask<F64>;
using U64Vec = hn::Vec<U64>;
constexpr std::int64_t kLanes = hn::MaxLanes(F64());

HWY_INLINE F64Vec load(const double* x) { return hn::LoadU(F64(), x); }
HWY_INLINE F64Vec load(const float* x) {
  return hn::PromoteTo(F64(), hn::LoadU(hn::Rebind<float, F64>(), x));
}

float largest_finite_of(const float* x, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  // x * 0 is 0 for finite x and NaN otherwise, and a sum with a NaN is NaN.
  auto most = hn::Set(d, x[0]);
  auto probe = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    most = hn::Max(most, v);
    probe = hn::Add(probe, hn::Mul(v, hn::Zero(d)));
  }
  float last = hn::GetLane(hn::MaxOfLanes(d, most));
  float last_probe = hn::GetLane(hn::SumOfLanes(d, probe));
  for (; i < n; ++i) {
    last = x[i] > last ? x[i] : last;
    last_probe += x[i] * 0.0f;
  }
  return last_probe == 0 ? last : std::numeric_limits<float>::quiet_NaN();
}

double largest_of(const double* x, std::int64_t n) {
  auto most = hn::Set(F64(), x[0]);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = hn::Max(most, load(x + i));
  double last = hn::GetLane(hn::MaxOfLanes(F64(), most));
  for (; i < n; ++i) last = x[i] > last ? x[i] : last;
  return last;
}

template <class T>
HWY_INLINE std::int64_t first_equal_of(const T* x, std::int64_t n, T value) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto wanted = hn::Set(d, value);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const std::intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), wanted));
    if (lane >= 0) return i + lane;
  }
  for (; i < n && x[i] != value; ++i) {
  }
  return i;
}
std::int64_t first_equal_f32(const float* x, std::int64_t n, float value) {
  return first_equal_of(x, n, value);
}
std::int64_t first_equal_f64(const double* x, std::int64_t n, double value) {
  return first_equal_of(x, n, value);
}

// exp_of_nonpositive() with vectors, operation by operation.
HWY_INLINE F64Vec exp_of(F64Vec x) {
  using namespace sampling;
  const F64 d;
  const auto c = [&](int i) HWY_ATTR { return hn::Set(d, kExp[i]); };
  const auto pair = [&](int i, F64Vec r) HWY_ATTR { return hn::Add(c(i), hn::Mul(c(i + 1), r)); };
  const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, kLog2E)), hn::Set(d, kRound));
  const auto k = hn::Sub(shifted, hn::Set(d, kRound));
  const auto high = hn::Sub(x, hn::Mul(k, hn::Set(d, kLn2High)));
  const auto low = hn::Mul(k, hn::Set(d, kLn2Low));
  const auto r = hn::Sub(high, low);
  const auto rest = hn::Sub(hn::Sub(high, r), low);
  const auto r2 = hn::Mul(r, r);
  const auto r4 = hn::Mul(r2, r2);
  const auto q0123 = hn::Add(pair(0, r), hn::Mul(pair(2, r), r2));
  const auto q4567 = hn::Add(pair(4, r), hn::Mul(pair(6, r), r2));
  const auto q = hn::Add(q0123, hn::Mul(r4, hn::Add(q4567, hn::Mul(pair(8, r), r4))));
  const auto y = hn::Add(hn::Set(d, 1.0), hn::Add(r, hn::Add(rest, hn::Mul(q, r2))));
  const U64 du;
  const auto scaled = hn::Add(hn::BitCast(du, y), hn::ShiftLeft<52>(hn::BitCast(du, shifted)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, kLeastExponent)), hn::BitCast(d, scaled));
}

template <class T>
HWY_INLINE void weigh_of(const T* x, std::int64_t n, double most, double factor, double* weights) {
  const F64 d;
  const auto m = hn::Set(d, most);
  const auto f = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(exp_of(hn::Mul(hn::Sub(load(x + i), m), f)), d, weights + i);
  }
  for (; i < n; ++i) weights[i] = exp_of_nonpositive((double{x[i]} - most) * factor);
  for (; i % kSumBlock != 0; ++i) weights[i] = 0;
}
void weigh_f32(const float* x, std::int64_t n, double most, double factor, double* weights) {
  weigh_of(x, n, most, factor, weights);
}
void weigh_f64(const double* x, std::int64_t n, double most, double factor, double* weights) {
  weigh_of(x, n, most, factor, weights);
}

// Cut::keeps() with vectors of weights and their ids.
struct KeepTest {
  F64Vec weight, token;

  explicit HWY_INLINE KeepTest(const Cut& cut)
      : weight(hn::Set(F64(), cut.weight)), token(hn::Set(F64(), double{1} * cut.token)) {}
  HWY_INLINE F64Mask operator()(F64Vec w, F64Vec ids) const {
    return hn::Or(hn::Gt(w, weight), hn::And(hn::Eq(w, weight), hn::Le(ids, token)));
  }
};

// The ids first, first + step, ...
HWY_INLINE F64Vec ids_from(std::int64_t first, double step) {
  const F64 d;
  return hn::Add(hn::Set(d, static_cast<double>(first)),
                 hn::Mul(hn::Iota(d, 0.0), hn::Set(d, step)));
}

double sum_kept_of(const double* weights, std::int64_t n, const Cut& cut) {
  const F64 d;
  const KeepTest kept(cut);
  constexpr std::int64_t kVecs = kSumLanes / kLanes;
  const auto step = hn::Set(d, static_cast<double>(kLanes));
  double sum = 0;
  for (std::int64_t block = 0; block < n; block += kSumBlock) {
    F64Vec acc[kVecs];
    for (F64Vec& a : acc) a = hn::Zero(d);
    auto ids = ids_from(block, 1);
    for (std::int64_t i = 0; i < kSumBlock; i += kSumLanes) {
      for (std::int64_t v = 0; v < kVecs; ++v) {
        const auto w = hn::LoadU(d, weights + block + i + v * kLanes);
        acc[v] = hn::Add(acc[v], hn::IfThenElseZero(kept(w, ids), w));
        ids = hn::Add(ids, step);
      }
    }
    HWY_ALIGN double lanes[kSumLanes];
    for (std::int64_t v = 0; v < kVecs; ++v) hn::Store(acc[v], d, lanes + v * kLanes);
    for (std::int64_t half = kSumLanes / 2; half > 0; half /= 2) {
      for (std::int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    sum += lanes[0];
  }
  return sum;
}

bool narrow_range_of(const double* weights, std::int64_t n, const Cut& cut, double& least,
                     double& most) {
  const F64 d;
  const KeepTest kept(cut);
  const auto low = hn::Set(d, least);
  const auto high = hn::Set(d, most);
  auto smallest = high;
  auto greatest = low;
  auto found = hn::Zero(d);
  auto ids = ids_from(0, 1);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto w = hn::LoadU(d, weights + i);
    const auto in = hn::And(hn::And(hn::Ge(w, low), hn::Le(w, high)), kept(w, ids));
    smallest = hn::Min(smallest, hn::IfThenElse(in, w, high));
    greatest = hn::Max(greatest, hn::IfThenElse(in, w, low));
    found = hn::Or(found, hn::VecFromMask(d, in));
    ids = hn::Add(ids, hn::Set(d, static_cast<double>(kLanes)));
  }
  if (hn::AllFalse(d, hn::MaskFromVec(found))) return false;
  least = hn::GetLane(hn::MinOfLanes(d, smallest));
  most = hn::GetLane(hn::MaxOfLanes(d, greatest));
  return true;
}

void add_to_bins_of(const double* weights, std::int64_t n, const Cut& cut, double least,
                    double most, int shift, WeightBin* bins) {
  const F64 d;
  const U64 du;
  const KeepTest kept(cut);
  const auto low = hn::Set(d, least);
  const auto high = hn::Set(d, most);
  const auto step = hn::Set(d, static_cast<double>(kLanes));
  const auto first = hn::Set(du, sampling::bits_of_f64(least));
  // Lanes outside the range add to spare bins, one per lane, so that none waits for another's sum.
  const auto spare = hn::Iota(du, static_cast<std::uint64_t>(kWeightBins));
  auto ids = ids_from(0, 1);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto w = hn::LoadU(d, weights + i);
    const auto in = hn::And(hn::And(hn::Ge(w, low), hn::Le(w, high)), kept(w, ids));
    ids = hn::Add(ids, step);
    if (hn::AllFalse(d, in)) continue;
    const auto bin = hn::ShiftRightSame(hn::Sub(hn::BitCast(du, w), first), shift);
    HWY_ALIGN std::uint64_t at[kLanes];
    hn::Store(hn::IfThenElse(hn::RebindMask(du, in), bin, spare), du, at);
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      bins[at[lane]].sum += weights[i + lane];
      ++bins[at[lane]].count;
    }
  }
}

std::int64_t gather_range_of(const double* weights, std::int64_t n, const Cut& cut, double least,
                             double most, Candidate* out) {
  const F64 d;
  const auto low = hn::Set(d, least);
  const auto high = hn::Set(d, most);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto w = hn::LoadU(d, weights + i);
    if (hn::AllFalse(d, hn::And(hn::Ge(w, low), hn::Le(w, high)))) continue;
    for (std::int64_t t = i; t < i + kLanes; ++t) {
      const auto token = static_cast<std::int32_t>(t);
      if (weights[t] < least || weights[t] > most || !cut.keeps(weights[t], token)) continue;
      out[count++] = {weights[t], token};
    }
  }
  return count;
}

// 1 - u of the noise with high word `first` and low word `second`, each in the low half of a lane.
HWY_INLINE F64Vec one_less_noise(U64Vec first, U64Vec second) {
  const F64 d;
  const U64 du;
  const auto low_half = hn::Set(du, 0xffffffff);
  const auto mantissa = hn::Or(hn::ShiftLeft<20>(hn::And(first, low_half)),
                               hn::ShiftRight<12>(hn::And(second, low_half)));
  const auto one_to_two = hn::BitCast(d, hn::Or(mantissa, hn::Set(du, 0x3ff0000000000000)));
  return hn::Sub(hn::Sub(hn::Set(d, 2.0), one_to_two), hn::Set(d, 0x1p-53));
}

// x * factor for the low halves of the lanes.
HWY_INLINE U64Vec times(U64Vec x, std::uint32_t factor) {
#if HWY_TARGET == HWY_SCALAR  // one lane, which has no halves
  return hn::Set(U64(), (hn::GetLane(x) & 0xffffffff) * factor);
#else
  const hn::Repartition<std::uint32_t, U64> halves;
  return hn::MulEven(hn::BitCast(halves, x), hn::Set(halves, factor));
#endif
}

// philox4x32() on the low halves of the lanes; the high halves are left undefined.
struct PhiloxVecs {
  U64Vec w0, w1, w2, w3;

  HWY_INLINE void round(U64Vec key0, U64Vec key1) {
    const auto a = times(w0, kPhiloxFactors[0]);
    const auto b = times(w2, kPhiloxFactors[1]);
    w0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), w1), key0);
    w1 = b;
    w2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), w3), key1);
    w3 = a;
  }
};

// token_noise() of one seed and position.
class Noise {
 public:
  HWY_INLINE Noise(std::uint64_t seed, std::uint64_t position)
      : low_(hn::Set(U64(), position)), high_(hn::Set(U64(), position >> 32)) {
    auto key0 = static_cast<std::uint32_t>(seed);
    auto key1 = static_cast<std::uint32_t>(seed >> 32);
    for (int r = 0; r < kPhiloxRounds; ++r) {
      keys_[r][0] = hn::Set(U64(), key0);
      keys_[r][1] = hn::Set(U64(), key1);
      key0 += kPhiloxKeySteps[0];
      key1 += kPhiloxKeySteps[1];
    }
  }
  // The Philox words of the token pairs pair, pair + 1, ... Two vectors at a time hide the
  // multiplier's latency.
  HWY_INLINE void of_pairs(std::uint64_t pair, PhiloxVecs& a, PhiloxVecs& b) const {
    const U64 du;
    const auto use = hn::Set(du, static_cast<std::uint64_t>(PhiloxUse::token_choice));
    a = {low_, high_, hn::Iota(du, pair), use};
    b = {low_, high_, hn::Iota(du, pair + kLanes), use};
    for (int r = 0; r < kPhiloxRounds; ++r) {
      a.round(keys_[r][0], keys_[r][1]);
      b.round(keys_[r][0], keys_[r][1]);
    }
  }

 private:
  U64Vec low_, high_;
  U64Vec keys_[kPhiloxRounds][2];
};

// The best token so far, and the bound that another must beat.
struct Race {
  const double* weights;
  std::uint64_t seed, position;
  double least = std::numeric_limits<double>::infinity();
  std::int32_t token = std::numeric_limits<std::int32_t>::max();

  void enter(std::int32_t t) {
    const double time = -log_of_positive(token_noise(seed, position, t)) / weights[t];
    if (time > least || (time == least && t > token)) return;
    least = time;
    token = t;
  }
  // As -ln u >= 1 - u, a token with 1 - u above bound() * weight cannot win. 2^-40 is more than all
  // rounding errors together, so the test saves nearly every logarithm and never changes the
  // result.
  double bound() const { return least * (1 + 0x1p-40); }
};

// Which of 2 * kLanes tokens may beat the best token so far.
struct Runners {
  F64Vec reach_even, reach_odd;  // upper bounds for 1 - u
  F64Mask even, odd;

  HWY_INLINE Runners(const double* weights, F64Vec bound, const KeepTest& kept, F64Vec ids) {
    const F64 d;
    F64Vec w_even, w_odd;
    hn::LoadInterleaved2(d, weights, w_even, w_odd);
    reach_even = hn::Mul(w_even, bound);
    reach_odd = hn::Mul(w_odd, bound);
    const auto least = hn::Set(d, 0x1p-53);  // the smallest possible 1 - u
    even = hn::And(kept(w_even, ids), hn::Ge(reach_even, least));
    odd = hn::And(kept(w_odd, hn::Add(ids, hn::Set(d, 1.0))), hn::Ge(reach_odd, least));
  }
  HWY_INLINE void look_at(const PhiloxVecs& noise) {
    even = hn::And(even, hn::Le(one_less_noise(noise.w0, noise.w1), reach_even));
    odd = hn::And(odd, hn::Le(one_less_noise(noise.w2, noise.w3), reach_odd));
  }
  HWY_INLINE F64Mask any() const { return hn::Or(even, odd); }

  void enter(Race& race, std::int64_t first) const {
    const F64 d;
    HWY_ALIGN double in[2][kLanes];
    hn::Store(hn::IfThenElseZero(even, hn::Set(d, 1.0)), d, in[0]);
    hn::Store(hn::IfThenElseZero(odd, hn::Set(d, 1.0)), d, in[1]);
    for (std::int64_t t = 0; t < 2 * kLanes; ++t) {
      if (in[t % 2][t / 2] != 0) race.enter(static_cast<std::int32_t>(first + t));
    }
  }
};

std::int32_t draw_token_of(const double* weights, std::int64_t n, const Cut& cut,
                           std::uint64_t seed, std::uint64_t position, std::int32_t likeliest) {
  const F64 d;
  const KeepTest kept(cut);
  const Noise noise(seed, position);
  Race race{weights, seed, position};
  if (cut.keeps(weights[likeliest], likeliest)) race.enter(likeliest);
  auto bound = hn::Set(d, race.bound());
  auto ids = ids_from(0, 2);
  const auto step = hn::Set(d, static_cast<double>(2 * kLanes));
  for (std::int64_t i = 0; i < n; i += 4 * kLanes) {
    Runners a(weights + i, bound, kept, ids);
    ids = hn::Add(ids, step);
    Runners b(weights + i + 2 * kLanes, bound, kept, ids);
    ids = hn::Add(ids, step);
    if (hn::AllFalse(d, hn::Or(a.any(), b.any()))) continue;
    PhiloxVecs noise_a, noise_b;
    noise.of_pairs(static_cast<std::uint64_t>(i / 2), noise_a, noise_b);
    a.look_at(noise_a);
    b.look_at(noise_b);
    if (hn::AllFalse(d, hn::Or(a.any(), b.any()))) continue;
    a.enter(race, i);
    b.enter(race, i + 2 * kLanes);
    bound = hn::Set(d, race.bound());
  }
  return race.token;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(largest_finite_of);
HWY_EXPORT(largest_of);
HWY_EXPORT(first_equal_f32);
HWY_EXPORT(first_equal_f64);
HWY_EXPORT(weigh_f32);
HWY_EXPORT(weigh_f64);
HWY_EXPORT(sum_kept_of);
HWY_EXPORT(narrow_range_of);
HWY_EXPORT(add_to_bins_of);
HWY_EXPORT(gather_range_of);
HWY_EXPORT(draw_token_of);

float largest_finite(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(largest_finite_of)(x, n);
}
double largest(const double* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(largest_of)(x, n); }
std::int64_t first_equal(const float* x, std::int64_t n, float value) {
  return HWY_DYNAMIC_DISPATCH(first_equal_f32)(x, n, value);
}
std::int64_t first_equal(const double* x, std::int64_t n, double value) {
  return HWY_DYNAMIC_DISPATCH(first_equal_f64)(x, n, value);
}
void weigh(const float* x, std::int64_t n, double most, double factor, double* weights) {
  HWY_DYNAMIC_DISPATCH(weigh_f32)(x, n, most, factor, weights);
}
void weigh(const double* x, std::int64_t n, double most, double factor, double* weights) {
  HWY_DYNAMIC_DISPATCH(weigh_f64)(x, n, most, factor, weights);
}
double sum_kept(const double* weights, std::int64_t n, const Cut& cut) {
  return HWY_DYNAMIC_DISPATCH(sum_kept_of)(weights, n, cut);
}
bool narrow_range(const double* weights, std::int64_t n, const Cut& cut, double& least,
                  double& most) {
  return HWY_DYNAMIC_DISPATCH(narrow_range_of)(weights, n, cut, least, most);
}
void add_to_bins(const double* weights, std::int64_t n, const Cut& cut, double least, double most,
                 int shift, WeightBin* bins) {
  HWY_DYNAMIC_DISPATCH(add_to_bins_of)(weights, n, cut, least, most, shift, bins);
}
std::int64_t gather_range(const double* weights, std::int64_t n, const Cut& cut, double least,
                          double most, Candidate* out) {
  return HWY_DYNAMIC_DISPATCH(gather_range_of)(weights, n, cut, least, most, out);
}
std::int32_t draw_token(const double* weights, std::int64_t n, const Cut& cut, std::uint64_t seed,
                        std::uint64_t position, std::int32_t likeliest) {
  return HWY_DYNAMIC_DISPATCH(draw_token_of)(weights, n, cut, seed, position, likeliest);
}

}  // namespace lathe
#endif  // HWY_ONCE
