#include "kernels/cpu/rowwise/rowwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/common/for_rows.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rowwise/rowwise.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/matmul/weight_load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

// Calls f(i, load, store) for each full vector of a row, then for a padded last one.
template <class F>
HWY_INLINE void for_vectors(std::int64_t n, F f) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

// Loads `count` floats, and zeros after them.
HWY_INLINE WeightVec load(const float* p, std::int64_t count) {
  const WeightTag d;
  if (count == static_cast<std::int64_t>(hn::Lanes(d))) return hn::LoadU(d, p);
  HWY_ALIGN float last[16] = {};
  std::memcpy(last, p, static_cast<std::size_t>(count) * sizeof(float));
  return hn::Load(d, last);
}
HWY_INLINE void store(WeightVec x, float* p, std::int64_t count) {
  const WeightTag d;
  if (count == static_cast<std::int64_t>(hn::Lanes(d))) return hn::StoreU(x, d, p);
  HWY_ALIGN float last[16];
  hn::Store(x, d, last);
  std::memcpy(p, last, static_cast<std::size_t>(count) * sizeof(float));
}

// Sum of (x - base)^2, or of x if !kSquares, with four vectors of partial sums.
template <bool kSquares>
HWY_INLINE float sum_of(const float* x, std::int64_t n, float base) {
  const WeightTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto b = hn::Set(d, base);
  const auto add = [&](WeightVec v, WeightVec sum) HWY_ATTR {
    if (!kSquares) return hn::Add(v, sum);
    const auto e = hn::Sub(v, b);
    return hn::MulAdd(e, e, sum);
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = add(hn::LoadU(d, x + i), s0);
    s1 = add(hn::LoadU(d, x + i + lanes), s1);
    s2 = add(hn::LoadU(d, x + i + 2 * lanes), s2);
    s3 = add(hn::LoadU(d, x + i + 3 * lanes), s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = add(hn::LoadU(d, x + i), s0);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += kSquares ? (x[i] - base) * (x[i] - base) : x[i];
  return sum;
}

HWY_INLINE WeightVec inverse_root(float x) {
  const WeightTag d;
  return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Set(d, x)));
}

void rms_norm_row(const float* x, const float* weight, float eps, std::int64_t n, bool add,
                  float* out) {
  const float mean = sum_of<true>(x, n, 0) / static_cast<float>(n);
  const auto factor = inverse_root(mean + eps);
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    auto normed = hn::Mul(load(x + i, count), factor);
    if (weight != nullptr) normed = hn::Mul(normed, load(weight + i, count));
    store(add ? hn::Add(load(out + i, count), normed) : normed, out + i, count);
  });
}

void layer_norm_row(const float* x, const float* weight, const float* bias, float eps,
                    std::int64_t n, float* out) {
  const float mean = sum_of<false>(x, n, 0) / static_cast<float>(n);
  const float var = sum_of<true>(x, n, mean) / static_cast<float>(n);
  const auto m = hn::Set(WeightTag(), mean);
  const auto factor = inverse_root(var + eps);
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto scaled = hn::Mul(hn::Sub(load(x + i, count), m), factor);
    store(hn::MulAdd(scaled, load(weight + i, count), load(bias + i, count)), out + i, count);
  });
}

HWY_INLINE WeightVec exp_of(WeightVec x) {
  // Highway's Exp() turns NaN into 0.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(WeightTag(), x));
}

// v / (1 + e^-power).
HWY_INLINE WeightVec over_one_plus_exp(WeightVec v, WeightVec power) {
  const WeightTag d;
  // e^88 is the last integer power in range; beyond it the quotient is practically 0. NaN stays
  // NaN.
  const auto most = hn::Set(d, 88.0f);
  const auto least = hn::Lt(power, hn::Neg(most));
  return hn::Div(v, hn::Add(hn::Set(d, 1.0f), exp_of(hn::IfThenElse(least, most, hn::Neg(power)))));
}

// The activation of v and u; tanh is 1 - 2 / (1 + e^2x). alpha and limit are broadcast.
template <ActivationKind kKind>
HWY_INLINE WeightVec activated(WeightVec v, WeightVec u, WeightVec alpha, WeightVec limit) {
  const WeightTag d;
  if constexpr (kKind == ActivationKind::silu) {
    return hn::Mul(over_one_plus_exp(v, v), u);
  } else if constexpr (kKind == ActivationKind::gelu_tanh) {
    // 2 sqrt(2 / pi) (v + 0.044715 v^3)
    const auto cube =
        hn::MulAdd(hn::Mul(v, v), hn::Set(d, 0.07135481627f), hn::Set(d, 1.5957691216f));
    return hn::Mul(over_one_plus_exp(v, hn::Mul(v, cube)), u);
  } else {
    // Not Min(): NaN must stay NaN.
    const auto c = hn::IfThenElse(hn::Gt(v, limit), limit, v);
    const auto below = hn::IfThenElse(hn::Gt(u, limit), limit, u);
    const auto e = hn::IfThenElse(hn::Lt(below, hn::Neg(limit)), hn::Neg(limit), below);
    if constexpr (kKind == ActivationKind::clamped_silu) {
      return hn::Mul(over_one_plus_exp(c, c), e);
    } else {
      return hn::Mul(over_one_plus_exp(c, hn::Mul(c, alpha)), hn::Add(e, hn::Set(d, 1.0f)));
    }
  }
}

template <ActivationKind kKind>
HWY_INLINE void activate_row(const Activation& how, const float* gate, const float* up,
                             std::int64_t n, float* out) {
  const WeightTag d;
  const auto alpha = hn::Set(d, how.alpha), limit = hn::Set(d, how.limit);
  if (up != nullptr) {
    for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      store(activated<kKind>(load(gate + i, count), load(up + i, count), alpha, limit), out + i,
            count);
    });
    return;
  }
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    HWY_ALIGN float turns[32] = {};
    const float* from = gate + 2 * i;
    if (count < static_cast<std::int64_t>(hn::Lanes(d))) {
      std::memcpy(turns, from, static_cast<std::size_t>(2 * count) * sizeof(float));
      from = turns;
    }
    WeightVec v, u;
    hn::LoadInterleaved2(d, from, v, u);
    store(activated<kKind>(v, u, alpha, limit), out + i, count);
  });
}

// If `up` is null, gate has both, interleaved.
void gated_row(const Activation& how, const float* gate, const float* up, std::int64_t n,
               float* out) {
  switch (how.kind) {
    case ActivationKind::silu:
      return activate_row<ActivationKind::silu>(how, gate, up, n, out);
    case ActivationKind::gelu_tanh:
      return activate_row<ActivationKind::gelu_tanh>(how, gate, up, n, out);
    case ActivationKind::clamped_swiglu:
      return activate_row<ActivationKind::clamped_swiglu>(how, gate, up, n, out);
    case ActivationKind::clamped_silu:
      return activate_row<ActivationKind::clamped_silu>(how, gate, up, n, out);
  }
}

// x *= sigmoid(gate).
void gate_row(const float* gate, std::int64_t n, float* x) {
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store(over_one_plus_exp(load(x + i, count), load(gate + i, count)), x + i, count);
  });
}

void scale_row(float factor, std::int64_t n, float* x) {
  const auto f = hn::Set(WeightTag(), factor);
  for_vectors(n, [&](std::int64_t i, std::int64_t count)
                     HWY_ATTR { store(hn::Mul(load(x + i, count), f), x + i, count); });
}

// x = limit * tanh(factor * x / limit).
void cap_row(float factor, float limit, std::int64_t n, float* x) {
  const WeightTag d;
  const auto f = hn::Set(d, factor), most = hn::Set(d, limit);
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto v = hn::Mul(load(x + i, count), f);
    const auto capped = hn::Mul(most, hn::Tanh(d, hn::Div(v, most)));
    store(hn::IfThenElse(hn::IsNaN(v), v, capped), x + i, count);
  });
}

void add_scaled_row(const float* x, float factor, std::int64_t n, float* out) {
  const auto f = hn::Set(WeightTag(), factor);
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store(hn::MulAdd(load(x + i, count), f, load(out + i, count)), out + i, count);
  });
}

template <class W>
HWY_INLINE void widen_row_of(const std::byte* from, std::int64_t n, float* to) {
  const WeightTag d;
  const auto* w = reinterpret_cast<const typename W::T*>(from);
  const auto scale = hn::Set(d, W::kFold);
  for_vectors(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    if (count == static_cast<std::int64_t>(hn::Lanes(d))) {
      return hn::StoreU(W::load(w + i, scale), d, to + i);
    }
    typename W::T last[16] = {};
    std::memcpy(last, w + i, static_cast<std::size_t>(count) * sizeof(typename W::T));
    store(W::load(last, scale), to + i, count);
  });
}

void widen_row(const std::byte* from, DType dtype, std::int64_t n, float* to) {
  switch (dtype) {
    case DType::f32:
      return widen_row_of<F32Weights>(from, n, to);
    case DType::bf16:
      return widen_row_of<Bf16Weights>(from, n, to);
    case DType::f16:
      return widen_row_of<F16Weights>(from, n, to);
    default:
      return widen_row_of<E4m3Weights>(from, n, to);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(rms_norm_row);
HWY_EXPORT(layer_norm_row);
HWY_EXPORT(gated_row);
HWY_EXPORT(gate_row);
HWY_EXPORT(scale_row);
HWY_EXPORT(cap_row);
HWY_EXPORT(add_scaled_row);
HWY_EXPORT(widen_row);

namespace {
const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }
float* floats(std::byte* row) { return reinterpret_cast<float*>(row); }
}  // namespace

void cpu_rms_norm(const Execution& execution, const RmsNorm& op) {
  const std::int64_t n = op.x.cols / op.heads;
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t t) {
    for (std::int64_t i = 0; i < op.x.cols; i += n) {
      HWY_DYNAMIC_DISPATCH(rms_norm_row)
      (floats(op.x.row(t)) + i, op.weight.data(), op.eps, n, op.add, floats(op.out.row(t)) + i);
    }
  });
}

void cpu_layer_norm(const Execution& execution, const LayerNorm& op) {
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t t) {
    HWY_DYNAMIC_DISPATCH(layer_norm_row)
    (floats(op.x.row(t)), op.weight.data(), op.bias.data(), op.eps, op.x.cols,
     floats(op.out.row(t)));
  });
}

void cpu_gated_activation(const Execution& execution, const GatedActivation& op) {
  for_rows(execution, op.out.rows, 4 * op.out.cols, [&](std::int64_t t) {
    HWY_DYNAMIC_DISPATCH(gated_row)
    (op.activation, floats(op.gate.row(t)), op.up.cols == 0 ? nullptr : floats(op.up.row(t)),
     op.out.cols, floats(op.out.row(t)));
  });
}

void cpu_gate_rows(const Execution& execution, const GateRows& op) {
  const std::int64_t n = op.x.cols / op.heads;
  for_rows(execution, op.x.rows, 4 * op.x.cols, [&](std::int64_t t) {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      const float* gate = floats(op.gate.row(t)) + h * op.gate_head;
      float* x = floats(op.x.row(t)) + h * n;
      if (op.gate.cols > 1) {
        HWY_DYNAMIC_DISPATCH(gate_row)(gate, n, x);
      } else {
        HWY_DYNAMIC_DISPATCH(scale_row)(1 / (1 + std::exp(-*gate)), n, x);
      }
    }
  });
}

void cpu_add_rows(const Execution& execution, const RowsView& x, const MutableRowsView& out) {
  for_rows(execution, x.rows, x.cols, [&](std::int64_t t) {
    cpu_add_scaled(floats(x.row(t)), 1, x.cols, floats(out.row(t)));
  });
}

void cpu_scale_rows(const Execution& execution, const ScaleRows& op) {
  const float factor = op.times * (op.factor.empty() ? 1 : op.factor[0]);
  for_rows(execution, op.rows.rows, 8 * op.rows.cols, [&](std::int64_t t) {
    float* const row = floats(op.rows.row(t));
    if (op.limit > 0) {
      HWY_DYNAMIC_DISPATCH(cap_row)(factor, op.limit, op.rows.cols, row);
    } else {
      HWY_DYNAMIC_DISPATCH(scale_row)(factor, op.rows.cols, row);
    }
  });
}

void cpu_embed(const Execution& execution, const Embed& op) {
  const WeightView& table = op.table;
  for (const std::int32_t t : op.tokens) {
    LATHE_CHECK(t >= 0 && t < op.vocab, "tokens lie in the table");
  }
  for_rows(execution, std::ssize(op.tokens), table.cols, [&](std::int64_t t) {
    float* const out = floats(op.out.row(t));
    const std::int64_t at = op.tokens[static_cast<std::size_t>(t)] - op.first;
    if (at < 0 || at >= table.rows) {
      std::fill_n(out, table.cols, 0.0f);
      return;
    }
    HWY_DYNAMIC_DISPATCH(widen_row)
    (table.data + bytes_of(table.dtype, at * table.cols), table.dtype, table.cols, out);
    if (op.scale != 1) HWY_DYNAMIC_DISPATCH(scale_row)(op.scale, table.cols, out);
  });
}

void cpu_gather_rows(const Execution& execution, const RowsView& x,
                     std::span<const std::int32_t> rows, const MutableRowsView& out) {
  const auto bytes = static_cast<std::size_t>(bytes_of(x.dtype, x.cols));
  for_rows(execution, out.rows, x.cols, [&](std::int64_t i) {
    std::memcpy(out.row(i), x.row(rows[static_cast<std::size_t>(i)]), bytes);
  });
}

void cpu_find_non_finite(const Execution& execution, const FindNonFinite& op) {
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t i) {
    const auto row = static_cast<std::size_t>(i);
    std::int32_t& first = op.first[op.rows.empty() ? row : static_cast<std::size_t>(op.rows[row])];
    const float* v = floats(op.x.row(i));
    if (first != kFinite ||
        std::all_of(v, v + op.x.cols, [](float e) { return std::isfinite(e); })) {
      return;
    }
    first = op.layer;
  });
}

void cpu_add_scaled(const float* x, float factor, std::int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(add_scaled_row)(x, factor, n, out);
}

}  // namespace lathe
#endif  // HWY_ONCE
