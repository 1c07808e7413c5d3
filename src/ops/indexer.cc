#include "ops/indexer.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/indexer.h"
#include "kernels/cpu/indexer_quantize.h"
#include "kernels/ref/indexer.h"

namespace lathe {
namespace {

Result<void> ref_select(const IndexTopK& args) {
  const std::int64_t rows = args.query.rows();
  const std::int64_t cols = args.rows.lens.empty() ? 0 : std::ranges::max(args.rows.lens);
  std::vector<double> logits(static_cast<std::size_t>(rows * cols));
  if (Result<void> ok = ref_index_logits(args.query, args.keys, args.rows, cols, logits, {}); !ok) {
    return ok;
  }
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto row = logits.begin() + t * cols;
    const std::vector<float> scores(row, row + args.rows.lens[static_cast<std::size_t>(t)]);
    const auto out =
        args.out.subspan(static_cast<std::size_t>(t * args.k), static_cast<std::size_t>(args.k));
    std::ranges::fill(out, -1);
    std::size_t n = 0;
    for (const std::int32_t p : ref_top_k(scores, args.k)) {
      out[n++] = in_target(args.target, t, LocalPos(p));
    }
  }
  return {};
}

}  // namespace

Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) {
  const StepView& step = *op.step;
  const Arena::Scope scope(*ops.arena);
  const std::int64_t row_heads = step.rows * op.heads;
  const std::span codes(ops.arena->take_array<e4m3>(row_heads * op.dim),
                        static_cast<std::size_t>(row_heads * op.dim));
  const std::span folded(ops.arena->take_array<float>(row_heads),
                         static_cast<std::size_t>(row_heads));
  if (step.selecting_rows > 0) {
    const IndexQuantize quantize{.q = op.q,
                                 .weights = op.weights,
                                 .heads = op.heads,
                                 .dim = op.dim,
                                 .policy = op.keys.layout.scale_policy(),
                                 .codes = codes,
                                 .scales = {},
                                 .folded = folded,
                                 .execution = ops.execution};
    if (Result<void> ok = index_quantize_q(quantize); !ok) return ok;
  } else {
    // No row has more than k keys, so no logit is computed and nothing reads the codes.
    std::ranges::fill(codes, e4m3{});
    std::ranges::fill(folded, 0.0f);
  }
  IndexTopK args;
  args.query = {op.heads, op.dim, codes, folded};
  args.keys.pool = op.keys;
  args.keys.page_table = step.page_table;
  args.rows = {.lens = step.index_lens, .request = step.row_request, .first = {}};
  args.target = {.unit = IndexTargetUnit::slot,
                 .table = step.page_table,
                 .pool = op.main,
                 .request = step.row_request};
  args.k = op.k;
  args.out = op.slots;
  if (op.budget_bytes > 0) args.tiling.budget_bytes = op.budget_bytes;
  args.execution = ops.execution;
  if (ops.device == Device::ref) return ref_select(args);
  LATHE_CHECK(ops.device == Device::cpu, "select_keys runs on ref and cpu");
  return index_top_k(args);
}

}  // namespace lathe
