// Mixture of experts: the router's choice, and the chosen experts over tokens sorted by expert.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/moe.h"
#include "ops/context.h"

namespace lathe {

/// For each row of logits [T, experts] f32: ids [T, top_k], best first, ties to the lower id; and
/// weights [T, top_k]: the scores without bias, normalised and scaled. Experts of groups that do
/// not stay are chosen only where the others are fewer than top_k, as in DeepSeek V3's published
/// inference code (their choice is -inf). NaN logits choose ids in range all the same.
void route(const OpsContext& ops, const Router& router, const RowsView& logits,
           std::span<std::int32_t> ids, std::span<float> weights);

/// out[t] += weights[t, j] * down(silu(gate x[t]) * up x[t]) of expert ids[t, j], one j after the
/// other in ascending order of expert id, in f32; so a row's bits depend on that row alone. x, out:
/// [T, n] f32 and apart; ids in [0, experts); weights [T, top_k]. Experts that no token chose cost
/// nothing. All experts have one shape and dtype.
void moe_ffn(const OpsContext& ops, const RowsView& x, std::span<const ExpertWeights> experts,
             std::span<const std::int32_t> ids, std::span<const float> weights, std::int64_t top_k,
             const MutableRowsView& out);

}  // namespace lathe
