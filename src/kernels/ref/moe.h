// Mixture of experts in double precision. Arguments as in ops/moe.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/moe.h"

namespace lathe {

void ref_route(const Router& router, const RowsView& logits, std::span<std::int32_t> ids,
               std::span<float> weights);
void ref_moe_ffn(const RowsView& x, std::span<const ExpertWeights> experts,
                 std::span<const std::int32_t> ids, std::span<const float> weights,
                 std::int64_t top_k, const MutableRowsView& out);

}  // namespace lathe
