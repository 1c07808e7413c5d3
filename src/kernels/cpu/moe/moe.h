// A layer's experts on the CPU: sorts tokens by expert, gathers and scatters their rows, and runs
// the experts. Arguments as in ops/moe.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/execution.h"
#include "base/rows_view.h"
#include "kernels/context.h"
#include "kernels/moe.h"

namespace lathe {

/// Pairs (token, choice) of some experts, sorted by expert, then by token. The arrays are in the
/// arena.
struct ExpertOrder {
  std::int64_t pairs = 0;
  std::int64_t top_k = 0;
  const std::int64_t* begin = nullptr;  // [experts + 1] index of each expert's first pair
  const std::int64_t* pair = nullptr;   // [pairs] token * top_k + choice
  const std::int64_t* place = nullptr;  // [tokens, top_k] indices of a token's pairs, ascending;
                                        // -1 after the last
};

/// Sorts the pairs with ids from `first` to first + experts - 1 and leaves out the others. ids:
/// [tokens, top_k].
ExpertOrder sort_by_expert(Arena& arena, std::span<const std::int32_t> ids, std::int64_t tokens,
                           std::int64_t top_k, std::int64_t first, std::int64_t experts);

/// out[i] = x[token of pair first + i], times the pair's weight unless `weights` is empty.
void cpu_gather_rows(const Execution& execution, const RowsView& x, std::span<const float> weights,
                     const ExpertOrder& order, std::int64_t first, const MutableRowsView& out);

/// out[token] += weight of the pair * y[i], for the pairs first + i in order; without `weights`
/// += y[i].
void cpu_scatter_rows(const Execution& execution, const RowsView& y, std::span<const float> weights,
                      const ExpertOrder& order, std::int64_t first, const MutableRowsView& out);

/// Runs the chosen experts. ids, weights: [T, top_k].
void cpu_expert_ffn(const OpsContext& ops, const ExpertLayer& op, std::span<const std::int32_t> ids,
                    std::span<const float> weights);
void cpu_expert_layer(const OpsContext& ops, const ExpertLayer& op);

}  // namespace lathe
