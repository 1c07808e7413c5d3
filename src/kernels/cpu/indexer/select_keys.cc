// cpu_select_keys(): quantises a step's queries, then selects.
#include <algorithm>

#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/indexer/indexer_quantize.h"
#include "kernels/cpu/indexer/indexer_walk.h"
#include "kernels/key_groups.h"

namespace lathe {

namespace {

// Copies the keys that other rows have chosen, or lists a row's first keys.
void take_choices(const SelectKeys& op) {
  const StepView& step = *op.step;
  const IndexTarget target{.unit = IndexTargetUnit::slot,
                           .table = index_table(step),
                           .pool = op.main,
                           .request = step.row_request};
  for (std::int64_t t = 0; t < step.rows; ++t) {
    const auto row = static_cast<std::size_t>(t);
    const std::span out =
        op.slots.subspan(row * static_cast<std::size_t>(op.k), static_cast<std::size_t>(op.k));
    std::ranges::fill(out, -1);
    if (op.choice_rows[row] >= 0) {
      const auto width = static_cast<std::size_t>(op.choice_width);
      const auto from = op.choices.subspan(static_cast<std::size_t>(op.choice_rows[row]) * width);
      std::ranges::copy(from.first(std::min(width, out.size())), out.begin());
      continue;
    }
    const std::int64_t keys = std::min<std::int64_t>(op.k, step.index_lens[row]);
    for (std::int64_t p = 0; p < keys; ++p) {
      out[static_cast<std::size_t>(p)] =
          in_target(target, t, LocalPos(static_cast<std::int32_t>(p)));
    }
  }
}

}  // namespace

Result<void> cpu_select_keys(const Execution& execution, Arena& arena, const SelectKeys& op) {
  if (!op.choice_rows.empty()) {
    take_choices(op);
    return {};
  }
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
    // No row has more than k keys: no logit is computed, and nothing reads the codes.
    std::ranges::fill(codes, e4m3{});
    std::ranges::fill(folded, 0.0f);
  }
  std::span keys = op.slots;
  if (op.tokens_per_key > 1) {
    keys = {arena.take_array<std::int32_t>(step.rows * op.k),
            static_cast<std::size_t>(step.rows * op.k)};
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
  args.out = keys;
  if (op.budget_bytes > 0) {
    // The logits that the plan counts for a short context are fewer than a small tile of each
    // thread.
    const std::int64_t tile = TileMemory::bytes(args.query, 16, 1) + 8 * (op.k + 1) + 64;
    args.tiling.budget_bytes = std::max(op.budget_bytes, thread_count(execution) * tile);
  }
  args.execution = execution;
  const Result<void> ok = index_top_k(args);
  if (ok && op.tokens_per_key > 1) list_tokens(op, keys);
  return ok;
}

}  // namespace lathe
