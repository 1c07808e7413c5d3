// The router of a mixture of experts on the CPU: scores, groups, top-k and weights of each row.
// Arguments as in ops/moe.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/execution.h"
#include "base/rows_view.h"
#include "kernels/moe.h"

namespace lathe {

void cpu_route(const Execution& execution, Arena& arena, const Router& router,
               const RowsView& logits, std::span<std::int32_t> ids, std::span<float> weights,
               std::span<const std::int32_t> tokens = {});

}  // namespace lathe
