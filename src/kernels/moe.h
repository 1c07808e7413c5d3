// Mixture of experts: the arguments of the router and the experts. ops/moe.h says what is computed.
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

/// How a router turns logits into experts and their weights.
struct Router {
  RouterScoring scoring = RouterScoring::softmax;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  std::int32_t groups = 1;  // of experts / groups consecutive experts each
  std::int32_t top_groups =
      1;  // groups to keep, by the sum of their `group_best` best biased scores
  std::int32_t group_best = 2;  // 2 (DeepSeek V3), or 1: by the best alone (DeepSeek V2)
  std::span<const float> bias;  // [experts] added to the scores for the choice only; or empty
  // [vocab, top_k] the experts of each token id, whatever their scores; or empty: scores decide.
  std::span<const std::int32_t> token_experts = {};
  bool normalize = true;                     // divide a token's weights by their sum + 1e-20
  float scale = 1;                           // then multiply them by this
  std::span<const float> expert_scale = {};  // [experts] and by its expert's; or empty: 1
  bool weighs_inputs = false;  // the weights multiply the experts' inputs, not their outputs
};

/// Gated feed-forward experts. If `up` is empty, `gate` holds the rows of both projections
/// interleaved, as gpt-oss stores them.
struct ExpertStacks {
  WeightStack gate;                  // [experts] of [ffn, n], or of [2 ffn, n]
  WeightStack up;                    // [experts] of [ffn, n], or empty
  WeightStack down;                  // [experts] of [n, ffn]
  std::span<const float> gate_bias;  // [experts, gate.rows], or empty
  std::span<const float> down_bias;  // [experts, n], or empty
};

/// out[t] += weights[t, j] * down(activation(gate x[t], up x[t])) of expert ids[t, j], for the
/// top_k experts that the router chooses; or = without `add`. With choice.weighs_inputs the experts
/// read weights[t, j] * x[t], and their outputs are added as they are. The stacks may have only the
/// experts from `first` on: choices of others add nothing, as if their outputs were 0.
struct ExpertLayer {
  RowsView x;                          // [T, n] f32 or Backend::activations()
  WeightView router;                   // [experts, n]
  std::span<const float> router_bias;  // [experts] added to the router's logits, or empty
  Router choice;
  Activation activation;
  const ExpertStacks* experts = nullptr;
  MutableRowsView out;  // [T, n] f32; must not overlap x
  // [T] token ids, for choice.token_experts; -1: a row that only pads a recorded batch.
  std::span<const std::int32_t> tokens = {};
  bool add = true;
  std::int64_t first = 0;  // the id of the stacks' first expert
  RowsView router_x = {};  // [T, n] as x: what the router reads instead; no data: x

  const RowsView& of_router() const { return router_x.data != nullptr ? router_x : x; }
};

}  // namespace lathe
