// The indexer's choice for a step's rows: quantises the queries, then selects (indexer.h).
#include <algorithm>

#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/indexer/indexer_quantize.h"

namespace lathe {

Result<void> cpu_select_keys(const Execution& execution, Arena& arena, const SelectKeys& op) {
  const StepView& step = *op.step;
  const Arena::Scope scope(arena);
  const std::int64_t row_heads = step.rows * op.heads;
  const std::span codes(arena.take_array<e4m3>(row_heads * op.dim),
                        static_cast<std::size_t>(row_heads * op.dim));
  const std::span folded(arena.take_array<float>(row_heads), static_cast<std::size_t>(row_heads));
  if (step.selecting_rows > 0) {
    const IndexQuantize quantize{.q = op.q,
                                 .weights = op.weights,
                                 .heads = op.heads,
                                 .dim = op.dim,
                                 .hadamard = op.hadamard,
                                 .policy = op.keys.layout.scale_policy(),
                                 .codes = codes,
                                 .scales = {},
                                 .folded = folded,
                                 .execution = execution};
    if (Result<void> ok = index_quantize_q(quantize); !ok) return ok;
  } else {
    // No row has more than k keys, so no logit is computed and nothing reads the codes.
    std::ranges::fill(codes, e4m3{});
    std::ranges::fill(folded, 0.0f);
  }
  IndexTopK args;
  args.query = {op.heads, op.dim, codes, folded};
  args.keys.pool = op.keys;
  args.keys.page_table = index_table(step);
  args.rows = {.lens = step.index_lens, .request = step.row_request, .first = {}};
  args.target = {.unit = IndexTargetUnit::slot,
                 .table = index_table(step),
                 .pool = op.main,
                 .request = step.row_request};
  args.k = op.k;
  args.out = op.slots;
  if (op.budget_bytes > 0) args.tiling.budget_bytes = op.budget_bytes;
  args.execution = execution;
  return index_top_k(args);
}

}  // namespace lathe
