// Mixture of experts: the arguments that every device's router and experts take.
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"
#include "kernels/activation.h"
#include "kernels/linear.h"

namespace lathe {

#define LATHE_ROUTER_SCORINGS(X) \
  X(sigmoid)                     \
  X(softmax)                     \
  X(sqrt_softplus) /* sqrt(ln(1 + e^x)) (DeepSeek V4) */
LATHE_ENUM(RouterScoring, LATHE_ROUTER_SCORINGS)

/// How a router's logits become experts and weights.
struct Router {
  RouterScoring scoring = RouterScoring::softmax;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  std::int32_t groups = 1;      // experts / groups are neighbours
  std::int32_t top_groups = 1;  // groups that stay, by the sum of their two best biased scores
  std::span<const float> bias;  // [experts] added to the scores for choosing only; or empty
  // [vocab, top_k] experts of each token: they are taken whatever their scores; or empty.
  std::span<const std::int32_t> token_experts = {};
  bool normalize = true;  // weights of a token sum to 1 (their sum + 1e-20 divides)
  float scale = 1;        // factor on the weights
};

/// Gated feed-forward experts. Where `up` is empty, gate holds both, rows of the gate and of the up
/// projection interleaved, as gpt-oss stores them.
struct ExpertStacks {
  WeightStack gate;                  // [experts] of [ffn, n], or of [2 ffn, n]
  WeightStack up;                    // [experts] of [ffn, n], or empty
  WeightStack down;                  // [experts] of [n, ffn]
  std::span<const float> gate_bias;  // [experts, gate.rows], or empty
  std::span<const float> down_bias;  // [experts, n], or empty
};

/// out[t] += weights[t, j] * down(activation(gate x[t], up x[t])) of expert ids[t, j], for the
/// top_k experts that the router chooses.
struct ExpertLayer {
  RowsView x;                          // [T, n] f32 or Backend::activations()
  WeightView router;                   // [experts, n]
  std::span<const float> router_bias;  // [experts] of the router's product, or empty
  Router choice;
  Activation activation;
  const ExpertStacks* experts = nullptr;
  MutableRowsView out;  // [T, n] f32, apart from x
  // [T], for choice.token_experts; -1: a row that only pads the batch, on a device that replays.
  std::span<const std::int32_t> tokens = {};
};

}  // namespace lathe
