// Delta-rule layers (linear attention with a state per request): gated delta net (GDN: Qwen3-Next,
// Qwen3.5) and Kimi delta attention (KDA). kernels/delta_rule.h says what is computed.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace lathe {

/// What a gate fades: one factor for a head's whole state (GDN), or one for each of the dk rows of
/// the state (KDA).
enum class DeltaDecay { per_head, per_channel };

/// How the log g of that factor is made from the projection f. g <= 0.
enum class DeltaGate {
  softplus,  // -exp(a_log) * softplus(f + dt_bias): GDN, Kimi-Linear
  bounded,   // gate_bound * sigmoid(exp(a_log) * (f + dt_bias)), gate_bound < 0: Ling 3, GLM-5.3
};

/// What the normed output is multiplied with: silu (GDN) or sigmoid (KDA) of the output gate.
enum class DeltaOutput { silu, sigmoid };

/// The shapes of a layer, or a rank's heads of it: `heads` and `key_heads` are then divided by the
/// ranks, and nothing else changes.
struct DeltaRuleProblem {
  std::int32_t heads = 0;      // value heads; each has a state [dk, dv]
  std::int32_t key_heads = 0;  // heads of q and of k; value head h uses key head
                               // h / (heads / key_heads)
  std::int32_t dk = 0;
  std::int32_t dv = 0;
  std::int32_t conv = 4;  // taps of the causal convolution
  DeltaDecay decay = DeltaDecay::per_head;
  DeltaGate gate = DeltaGate::softplus;
  float gate_bound = 0;  // DeltaGate::bounded only
  DeltaOutput output = DeltaOutput::silu;

  friend bool operator==(const DeltaRuleProblem&, const DeltaRuleProblem&) = default;

  /// Columns of q and of k.
  constexpr std::int64_t key_cols() const { return std::int64_t{key_heads} * dk; }
  constexpr std::int64_t value_cols() const { return std::int64_t{heads} * dv; }
  /// Columns of q | k | v, which the convolution runs over.
  constexpr std::int64_t channels() const { return 2 * key_cols() + value_cols(); }
  /// Columns of the gate's projection f, and elements of dt_bias.
  constexpr std::int64_t gate_cols() const {
    return decay == DeltaDecay::per_head ? heads : std::int64_t{heads} * dk;
  }
};

/// Floats of the recurrent states in a request's state.
constexpr std::int64_t delta_matrix_floats(const DeltaRuleProblem& p) {
  return std::int64_t{p.heads} * p.dk * p.dv;
}
/// Bytes of state that a layer keeps for a request: f32 [heads, dk, dv], then the last inputs of
/// the convolution, f32 [conv - 1, channels] in order of position (0 before the request's first
/// token). A state may be copied, and it may be used with any later rows.
constexpr std::int64_t delta_state_bytes(const DeltaRuleProblem& p) {
  return 4 * (delta_matrix_floats(p) + (p.conv - 1) * p.channels());
}

/// Errors (invalid_argument): a count below 1, dk or dv not a multiple of 16, more than 8 taps, key
/// heads that do not divide the value heads, KDA with fewer key heads than value heads, a bound >=
/// 0.
Result<void> check_delta_rule(const DeltaRuleProblem& p);

}  // namespace lathe
