// Mixture of experts: the arguments that every device's router and experts take.
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"
#include "kernels/linear.h"

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

struct ExpertWeights {
  WeightView gate;  // [ffn, n]
  WeightView up;    // [ffn, n]
  WeightView down;  // [n, ffn]
};

}  // namespace lathe
