// Delta-rule layers: what is computed between the projections, and the operator's arguments.
#pragma once

#include <cstdint>
#include <span>

#include "attn/delta_rule.h"
#include "base/rows_view.h"
#include "layout/pages/state_pool.h"
#include "step/left_states.h"
#include "step/step.h"

namespace lathe {

/// Everything of a delta-rule layer between its projections and its output projection
/// (Yang et al., "Gated Delta Networks", 2024; Kimi Linear, 2025). For a request's token t:
///
///   1. Causal convolution over the channels of q | k | v, without bias, then SiLU:
///      c_t = silu(sum_i conv[channel, i] * x_{t - taps + 1 + i}); inputs before token 0 are 0.
///   2. q and k of each key head: q = q / sqrt(sum q^2 + 1e-6) * dk^-0.5, k without the factor.
///   3. Per value head: beta = sigmoid(beta_t); g as DeltaGate says, one per head or per channel.
///   4. The recurrence over the state S [dk, dv] of each value head, in order of position:
///      S = diag(e^g) S;  d = beta (v - k^T S);  S = S + k d^T;  o = q^T S.
///   5. out = RMSNorm(o; norm) * act(gate), per value head (act: DeltaOutput).
///
/// A request's state (delta_state_bytes()) is S of every head and the last inputs of the
/// convolution. It is read and written in slots as StepView::state_before says: after the last row,
/// after a row at the end of a slot's tokens, and in phase verify after each of the last rows, as
/// many as a slot has banks. A slot that is -1 is not written.
///
/// On ref and cpu outputs and states have the same bits however a request's rows are cut into
/// steps: they run the recurrence row by row in a fixed order. On cpu that is as fast as the
/// chunked form (4 instead of about 5.5 multiply-adds per element of S), since a tile of S stays in
/// L1. On sm90 steps of more than kDeltaSequentialRows rows of a request use the chunked form, so
/// bits depend on the cut. They do so only where dk and dv are 128 and step->state_tokens is a
/// multiple of kDeltaChunk; other shapes run row by row there too, slowly.
struct DeltaRule {
  const StepView* step = nullptr;  // the step of a layer group with a state
  DeltaRuleProblem problem;
  RowsView x;                      // [T, channels] f32: q | k | v before the convolution
  RowsView decay;                  // [T, gate_cols] f32: f of the gate (GDN: a)
  RowsView beta;                   // [T, heads] f32, before the sigmoid
  RowsView gate;                   // [T, heads * dv] f32: the output gate, before act
  std::span<const float> conv;     // [channels, taps], the oldest input first
  std::span<const float> a_log;    // [heads]
  std::span<const float> dt_bias;  // [gate_cols]
  std::span<const float> norm;     // [dv]
  float norm_eps = 0;
  MutableRowsView out;  // [T, heads * dv] activations: the input of the output projection
  // The layer's states; bank_bytes >= delta_state_bytes(problem).
  StateView state;
};

inline constexpr std::int32_t kDeltaChunk = 64;           // rows of the chunked form
inline constexpr std::int32_t kDeltaSequentialRows = 16;  // rows of a request, in one step

/// Bytes of OpsContext::tensors that the operator uses on a GPU for a step of `rows` rows and
/// `requests` requests, at most. On the host it uses only OpsContext::control: about 260 KiB per
/// thread.
constexpr std::int64_t delta_scratch_bytes(const DeltaRuleProblem& p, std::int64_t rows,
                                           std::int64_t requests) {
  const std::int64_t chunks = rows / kDeltaChunk + 2 * requests;
  // Of a row in a chunk, with padding: a value head's W, U, scores and gates; a key head's q and k.
  const std::int64_t of_head = 2 * ((p.dk + 8) + (p.dv + 32) + (kDeltaChunk + 8)) + 8;
  const std::int64_t of_row = p.heads * of_head + p.key_heads * 4 * (std::int64_t{p.dk} + 8);
  const std::int64_t of_chunk = kDeltaChunk * of_row + p.heads * 4 * std::int64_t{p.dk};
  return 2 * rows * p.channels() + chunks * of_chunk + 1024;
}

}  // namespace lathe
