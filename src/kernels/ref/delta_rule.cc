#include "kernels/ref/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lathe {
namespace {

using Doubles = std::vector<double>;

const float* floats(const RowsView& rows, std::int64_t t) {
  return reinterpret_cast<const float*>(rows.row(t));
}
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * logistic(x); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

// One request's rows, one after another, over a copy of its state.
class DeltaRequest {
 public:
  DeltaRequest(const DeltaRule& op, std::size_t r)
      : op_(op),
        p_(op.problem),
        r_(r),
        first_(op.step->q_indptr[r]),
        state_(static_cast<std::size_t>(delta_state_bytes(p_) / 4)) {
    const PageId before = op.step->state_before[r];
    if (before.is_hole()) return;
    const std::int64_t rows = op.step->q_indptr[r + 1] - first_;
    const std::byte* from = op.state.at(before, op.step->kv_lens[r] - rows - 1);
    std::copy_n(reinterpret_cast<const float*>(from), state_.size(), state_.begin());
  }

  void run() {
    const StepView& step = *op_.step;
    for (std::int64_t t = first_; t < step.q_indptr[r_ + 1]; ++t) {
      const std::int64_t at = step.positions[static_cast<std::size_t>(t)].value;
      if (at < 0) continue;
      const Doubles mixed = convolve(t);
      for (std::int64_t h = 0; h < p_.heads; ++h) head(t, h, mixed);
      const PageId slot =
          step.state_table.at(static_cast<std::int64_t>(r_), at / step.state_tokens);
      if (slot.is_hole() || !leaves_state(step, op_.state, at, step.kv_lens[r_])) continue;
      std::copy(state_.begin(), state_.end(), reinterpret_cast<float*>(op_.state.at(slot, at)));
    }
  }

 private:
  // silu of the convolution's output; the row moves to the end of the last inputs.
  Doubles convolve(std::int64_t t) {
    const std::int64_t channels = p_.channels(), kept = p_.conv - 1;
    float* last = state_.data() + delta_matrix_floats(p_);  // [kept, channels]
    const float* x = floats(op_.x, t);
    Doubles out(static_cast<std::size_t>(channels));
    for (std::int64_t c = 0; c < channels; ++c) {
      const float* taps = op_.conv.data() + c * p_.conv;
      double sum = double{taps[kept]} * x[c];
      for (std::int64_t i = 0; i < kept; ++i) sum += double{taps[i]} * last[i * channels + c];
      out[static_cast<std::size_t>(c)] = silu(sum);
      for (std::int64_t i = 0; i + 1 < kept; ++i) {
        last[i * channels + c] = last[(i + 1) * channels + c];
      }
      if (kept > 0) last[(kept - 1) * channels + c] = x[c];
    }
    return out;
  }

  // dk values of a key head, with norm 1.
  Doubles normed(const double* x) const {
    Doubles out(x, x + p_.dk);
    double squares = 0;
    for (const double v : out) squares += v * v;
    for (double& v : out) v /= std::sqrt(squares + 1e-6);
    return out;
  }

  // e^g for each row of a head's state.
  Doubles fades(std::int64_t t, std::int64_t h) const {
    Doubles out(static_cast<std::size_t>(p_.dk));
    for (std::int64_t i = 0; i < p_.dk; ++i) {
      const std::int64_t c = p_.decay == DeltaDecay::per_head ? h : h * p_.dk + i;
      const double f = double{floats(op_.decay, t)[c]} + op_.dt_bias[static_cast<std::size_t>(c)];
      const double a = std::exp(double{op_.a_log[static_cast<std::size_t>(h)]});
      const double g =
          p_.gate == DeltaGate::softplus ? -a * softplus(f) : p_.gate_bound * logistic(a * f);
      out[static_cast<std::size_t>(i)] = std::exp(g);
    }
    return out;
  }

  void head(std::int64_t t, std::int64_t h, const Doubles& mixed) {
    const std::int64_t key_head = h / (p_.heads / p_.key_heads);
    const Doubles q = normed(mixed.data() + key_head * p_.dk);
    const Doubles k = normed(mixed.data() + p_.key_cols() + key_head * p_.dk);
    const double* v = mixed.data() + 2 * p_.key_cols() + h * p_.dv;
    const Doubles fade = fades(t, h);
    const double beta = logistic(floats(op_.beta, t)[h]);
    float* s = state_.data() + h * p_.dk * p_.dv;
    Doubles o(static_cast<std::size_t>(p_.dv));
    for (std::int64_t j = 0; j < p_.dv; ++j) {
      double known = 0;
      for (std::int64_t i = 0; i < p_.dk; ++i) {
        const auto at = static_cast<std::size_t>(i);
        known += k[at] * fade[at] * s[i * p_.dv + j];
      }
      const double d = beta * (v[j] - known);
      double sum = 0;
      for (std::int64_t i = 0; i < p_.dk; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double now = fade[at] * s[i * p_.dv + j] + k[at] * d;
        sum += q[at] * now;
        s[i * p_.dv + j] = static_cast<float>(now);
      }
      o[static_cast<std::size_t>(j)] = sum / std::sqrt(static_cast<double>(p_.dk));
    }
    write(t, h, o);
  }

  // The gated norm.
  void write(std::int64_t t, std::int64_t h, const Doubles& o) const {
    double squares = 0;
    for (const double v : o) squares += v * v;
    const double factor = 1 / std::sqrt(squares / p_.dv + op_.norm_eps);
    const float* gate = floats(op_.gate, t) + h * p_.dv;
    auto* out = reinterpret_cast<float*>(op_.out.row(t)) + h * p_.dv;
    for (std::int64_t j = 0; j < p_.dv; ++j) {
      const double act = p_.output == DeltaOutput::silu ? silu(gate[j]) : logistic(gate[j]);
      const auto at = static_cast<std::size_t>(j);
      out[j] = static_cast<float>(o[at] * factor * op_.norm[at] * act);
    }
  }

  const DeltaRule& op_;
  const DeltaRuleProblem& p_;
  std::size_t r_;
  std::int64_t first_;
  std::vector<float> state_;
};

}  // namespace

void ref_delta_rule(const DeltaRule& op) {
  for (std::int64_t r = 0; r < op.step->requests; ++r) {
    DeltaRequest(op, static_cast<std::size_t>(r)).run();
  }
}

}  // namespace lathe
