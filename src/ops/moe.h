// Mixture of experts: the router, and the chosen experts over tokens sorted by expert.
#pragma once

#include "kernels/context.h"
#include "kernels/moe.h"
#include "kernels/shared_experts.h"

namespace lathe {

/// The whole mixture of experts of a layer.
///
/// Router: logits are x router^T in f32, whatever ops.precision is. Each token gets the top_k
/// experts with the best biased scores, ties to the lower id. An expert's weight is its score
/// without bias, normalised and scaled. With op.router_x the router reads that instead of x.
/// Experts of dropped groups are chosen only if fewer than top_k others exist, as in DeepSeek V3's
/// published inference code, where their score is -inf. NaN logits still give ids in range. With
/// op.choice.token_experts the token id decides which experts a row gets, and the logits decide
/// only their weights.
///
/// Experts: out[t] += weight * down(activation(gate x[t], up x[t])) over the chosen experts, in
/// ascending order of id, in f32. So a row's bits depend on that row alone. Experts that no token
/// chose cost nothing.
void expert_layer(const OpsContext& ops, const ExpertLayer& op);

/// Routed and shared experts, if the backend computes both in the same launches: the shared
/// experts' rows are added after the routed experts', or before them without op.add. Otherwise
/// returns false and does nothing. Rows have the bits of the separate operators.
bool expert_layer_with_shared(const OpsContext& ops, const ExpertLayer& op,
                              const SharedExperts& shared);

}  // namespace lathe
