// Shared experts as an argument of operators, and backends that compute them with routed ones.
#pragma once

#include "kernels/context.h"
#include "kernels/moe.h"

namespace lathe {

/// Gated experts of every row, as one: out += down(activation(gate x, up x)), after the routed
/// experts; or out = without ExpertLayer::add, before them.
struct SharedExperts {
  WeightView gate;  // [width, n]
  WeightView up;    // [width, n]
  WeightView down;  // [n, width]
  Activation activation;
  // [1, n] Row t of activation(gate x, up x) is multiplied by sigmoid(factor x[t]); or empty.
  WeightView factor = {};
};

/// A backend that may compute both kinds of experts in the same launches.
class SharedExpertBackend {
 public:
  virtual ~SharedExpertBackend() = default;
  /// Returns false and does nothing if it has no such launches for these arguments; ops/ then runs
  /// the separate operators, which give the same bits.
  virtual bool expert_layer_with_shared(const OpsContext& ops, const ExpertLayer& op,
                                        const SharedExperts& shared) = 0;
};

}  // namespace lathe
