// Mixture of experts: the router's choice, and the chosen experts over tokens sorted by expert.
#pragma once

#include "kernels/context.h"
#include "kernels/moe.h"

namespace lathe {

/// The whole of a layer's experts. The router's logits are x router^T in f32, whatever
/// ops.precision. A token takes top_k experts, best first, ties to the lower id; their weights are
/// the scores without bias, normalised and scaled. Experts of dropped groups are chosen only where
/// fewer than top_k others exist, as in DeepSeek V3's published inference code (their choice is
/// -inf). NaN logits still give ids in range. With op.choice.token_experts a row takes the experts
/// of its token, and the logits give their weights alone.
///
/// out[t] += weight * down(activation(gate x[t], up x[t])) over the chosen experts in ascending
/// order of id, in f32, so a row's bits depend on that row alone. Experts that no token chose cost
/// nothing.
void expert_layer(const OpsContext& ops, const ExpertLayer& op);

}  // namespace lathe
