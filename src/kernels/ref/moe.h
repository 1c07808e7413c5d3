// Mixture of experts in double precision. Arguments as in ops/moe.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/moe.h"

namespace lathe {

void ref_route(const Router& router, const RowsView& logits, std::span<std::int32_t> ids,
               std::span<float> weights, std::span<const std::int32_t> tokens = {});
/// Runs the chosen experts. ids, weights: [T, top_k].
void ref_expert_ffn(const ExpertLayer& op, std::span<const std::int32_t> ids,
                    std::span<const float> weights);
void ref_expert_layer(const ExpertLayer& op);

}  // namespace lathe
