// Mixture of experts: the router's choice, and the chosen experts over tokens sorted by expert.
#pragma once

#include "kernels/context.h"
#include "kernels/moe.h"

namespace lathe {

/// The whole of a layer's experts. The router's logits are x router^T in f32, whatever
/// ops.precision. A token takes top_k experts, best first, ties to the lower id; their weights are
/// the scores without bias, normalised and scaled. Experts of groups that do not stay are chosen
/// only where the others are fewer than top_k, as in DeepSeek V3's published inference code (their
/// choice is -inf). NaN logits choose ids in range all the same.
///
/// out[t] += weight * down(activation(gate x[t], up x[t])) for one chosen expert after the other in
/// ascending order of id, in f32; so a row's bits depend on that row alone. Experts that no token
/// chose cost nothing.
void expert_layer(const OpsContext& ops, const ExpertLayer& op);

}  // namespace lathe
