// Mixture of experts: the router's choice, and the chosen experts over tokens sorted by expert.
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"
#include "base/rows_view.h"
#include "kernels/linear.h"
#include "ops/context.h"

namespace lathe {

#define LATHE_ROUTER_SCORINGS(X) X(sigmoid) X(softmax)
LATHE_ENUM(RouterScoring, LATHE_ROUTER_SCORINGS)

/// How a router's logits become experts and weights.
struct Router {
  RouterScoring scoring = RouterScoring::softmax;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  std::int32_t groups = 1;      // experts / groups are neighbours
  std::int32_t top_groups = 1;  // groups that stay, by the sum of their two best biased scores
  std::span<const float> bias;  // [experts] added to the scores for choosing only; or empty
  bool normalize = true;        // weights of a token sum to 1 (their sum + 1e-20 divides)
  float scale = 1;              // factor on the weights
};

/// For each row of logits [T, experts] f32: ids [T, top_k], best first, ties to the lower id; and
/// weights [T, top_k]: the scores without bias, normalised and scaled. Scores of groups that do
/// not stay count as 0 in the choice, as in DeepSeek V3's published model code. NaN logits choose
/// ids in range all the same.
void route(const OpsContext& ops, const Router& router, const RowsView& logits,
           std::span<std::int32_t> ids, std::span<float> weights);

struct ExpertWeights {
  WeightView gate;  // [ffn, n]
  WeightView up;    // [ffn, n]
  WeightView down;  // [n, ffn]
};

/// out[t] += sum_j weights[t, j] * down(silu(gate x[t]) * up x[t]) of expert ids[t, j], summed over
/// j in ascending order of expert id in f32. x, out: [T, n] f32; experts that no token chose cost
/// nothing. All experts have one shape and dtype.
void moe_ffn(const OpsContext& ops, const RowsView& x, std::span<const ExpertWeights> experts,
             std::span<const std::int32_t> ids, std::span<const float> weights, std::int64_t top_k,
             const MutableRowsView& out);

}  // namespace lathe
