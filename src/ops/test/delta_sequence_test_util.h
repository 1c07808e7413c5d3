// For tests of delta-rule layers: a sequence of tokens with its outputs and states in double
// precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attn/delta_rule.h"
#include "ops/test/test_util.h"

namespace lathe::delta_test {

using ops_test::Rows;

inline DeltaRuleProblem gdn(std::int32_t heads, std::int32_t key_heads, std::int32_t dk,
                            std::int32_t dv) {
  return {.heads = heads, .key_heads = key_heads, .dk = dk, .dv = dv};
}
inline DeltaRuleProblem kda(std::int32_t heads, std::int32_t dk, std::int32_t dv,
                            bool bounded = false) {
  return {.heads = heads,
          .key_heads = heads,
          .dk = dk,
          .dv = dv,
          .decay = DeltaDecay::per_channel,
          .gate = bounded ? DeltaGate::bounded : DeltaGate::softplus,
          .gate_bound = bounded ? -5.0f : 0.0f,
          .output = DeltaOutput::sigmoid};
}
inline std::string name_of(const DeltaRuleProblem& p) {
  return std::string(p.decay == DeltaDecay::per_head ? "gdn " : "kda ") +
         (p.gate == DeltaGate::bounded ? "bounded " : "") + std::to_string(p.heads) + "/" +
         std::to_string(p.key_heads) + " x " + std::to_string(p.dk) + " x " + std::to_string(p.dv);
}

struct DeltaWeights {
  DeltaRuleProblem problem;
  std::vector<float> conv, a_log, dt_bias, norm;

  template <class Rng>
  DeltaWeights(Rng& rng, const DeltaRuleProblem& p) : problem(p) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> a(0.05f, 4.0f);
    for (std::int64_t i = 0; i < p.channels() * p.conv; ++i) conv.push_back(0.5f * normal(rng));
    for (std::int64_t i = 0; i < p.heads; ++i) a_log.push_back(std::log(a(rng)));
    for (std::int64_t i = 0; i < p.gate_cols(); ++i) dt_bias.push_back(normal(rng) - 3);
    for (std::int64_t i = 0; i < p.dv; ++i) norm.push_back(1 + 0.2f * normal(rng));
  }
};

struct DeltaInputs {
  Rows x, decay, beta, gate;

  DeltaInputs(const DeltaRuleProblem& p, std::int64_t rows)
      : x(rows, p.channels()),
        decay(rows, p.gate_cols()),
        beta(rows, p.heads),
        gate(rows, p.value_cols()) {}
  template <class F>
  void for_each(DeltaInputs& other, F f) {
    f(x, other.x);
    f(decay, other.decay);
    f(beta, other.beta);
    f(gate, other.gate);
  }
};

/// The tokens of a request.
class DeltaSequence {
 public:
  /// `gates` multiplies f, so that e^g covers more of (0, 1).
  template <class Rng>
  DeltaSequence(Rng& rng, const DeltaWeights& weights, std::int64_t tokens, float gates = 1)
      : weights_(&weights), in_(weights.problem, tokens) {
    for (Rows* rows : {&in_.x, &in_.decay, &in_.beta, &in_.gate}) rows->randomize(rng);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t c = 0; c < in_.decay.cols; ++c) in_.decay.row(t)[c] *= gates;
    }
  }
  const DeltaWeights& weights() const { return *weights_; }
  std::int64_t tokens() const { return in_.x.rows; }
  DeltaInputs& inputs() { return in_; }
  const DeltaInputs& inputs() const { return in_; }

  /// Calls f(t, outputs [heads * dv], states [heads, dk, dv]) after every token.
  template <class F>
  void for_outputs(F f) const {
    const DeltaRuleProblem& p = weights_->problem;
    std::vector<double> state(static_cast<std::size_t>(delta_matrix_floats(p)));
    std::vector<double> out(static_cast<std::size_t>(p.value_cols()));
    for (std::int64_t t = 0; t < tokens(); ++t) {
      const std::vector<double> mixed = convolved(t);
      for (std::int64_t h = 0; h < p.heads; ++h) {
        advance(t, h, mixed, state.data() + h * p.dk * p.dv, out.data() + h * p.dv);
      }
      f(t, out, state);
    }
  }

 private:
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static void to_unit(double* x, std::int64_t n) {
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
    for (std::int64_t i = 0; i < n; ++i) x[i] /= std::sqrt(squares + 1e-6);
  }

  std::vector<double> convolved(std::int64_t t) const {
    const DeltaRuleProblem& p = weights_->problem;
    std::vector<double> out(static_cast<std::size_t>(p.channels()));
    for (std::int64_t c = 0; c < p.channels(); ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < p.conv; ++i) {
        const std::int64_t from = t + i - p.conv + 1;
        if (from < 0) continue;
        sum +=
            double{weights_->conv[static_cast<std::size_t>(c * p.conv + i)]} * in_.x.row(from)[c];
      }
      out[static_cast<std::size_t>(c)] = sum * sigmoid(sum);
    }
    for (std::int64_t h = 0; h < 2 * p.key_heads; ++h) to_unit(out.data() + h * p.dk, p.dk);
    return out;
  }
  double log_fade(std::int64_t t, std::int64_t h, std::int64_t i) const {
    const DeltaRuleProblem& p = weights_->problem;
    const std::int64_t c = p.decay == DeltaDecay::per_head ? h : h * p.dk + i;
    const double f = double{in_.decay.row(t)[c]} + weights_->dt_bias[static_cast<std::size_t>(c)];
    const double a = std::exp(double{weights_->a_log[static_cast<std::size_t>(h)]});
    if (p.gate == DeltaGate::bounded) return p.gate_bound * sigmoid(a * f);
    return -a * (f > 30 ? f : std::log1p(std::exp(f)));
  }
  void advance(std::int64_t t, std::int64_t h, const std::vector<double>& mixed, double* state,
               double* out) const {
    const DeltaRuleProblem& p = weights_->problem;
    const double* q = mixed.data() + h * p.key_heads / p.heads * p.dk;
    const double* k = q + p.key_cols();
    const double* v = mixed.data() + 2 * p.key_cols() + h * p.dv;
    const double beta = sigmoid(in_.beta.row(t)[h]);
    std::vector<double> known(static_cast<std::size_t>(p.dv));
    for (std::int64_t i = 0; i < p.dk; ++i) {
      const double fade = std::exp(log_fade(t, h, i));
      for (std::int64_t j = 0; j < p.dv; ++j) {
        state[i * p.dv + j] *= fade;
        known[static_cast<std::size_t>(j)] += k[i] * state[i * p.dv + j];
      }
    }
    std::fill_n(out, p.dv, 0.0);
    for (std::int64_t i = 0; i < p.dk; ++i) {
      for (std::int64_t j = 0; j < p.dv; ++j) {
        state[i * p.dv + j] += k[i] * beta * (v[j] - known[static_cast<std::size_t>(j)]);
        out[j] += q[i] * state[i * p.dv + j] / std::sqrt(static_cast<double>(p.dk));
      }
    }
    double squares = 0;
    for (std::int64_t j = 0; j < p.dv; ++j) squares += out[j] * out[j];
    for (std::int64_t j = 0; j < p.dv; ++j) {
      const double g = in_.gate.row(t)[h * p.dv + j];
      out[j] *= weights_->norm[static_cast<std::size_t>(j)] / std::sqrt(squares / p.dv + 1e-6) *
                (p.output == DeltaOutput::silu ? g * sigmoid(g) : sigmoid(g));
    }
  }

  const DeltaWeights* weights_;
  DeltaInputs in_;
};

}  // namespace lathe::delta_test
