#include "attn/call_args.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <numeric>

#include "attn/problem_name.h"

namespace lathe {

Result<AttentionProblem> problem_of_call(std::string_view attention, const CacheLayout& layout,
                                         std::int32_t heads, bool two_sources) {
  auto named = problem_from_name(attention);
  if (!named) return named.error();
  AttentionProblem p = *named;
  p.heads = heads;
  const bool gqa = p.kind == ProblemKind::grouped_query;
  if (gqa ? !is_gqa(layout.kind()) : !is_latent(layout.kind())) {
    return Error{ErrorCode::invalid_argument, "layout",
                 fmt::format("a {} layout for {}", gqa ? "gqa" : "latent", attention),
                 std::string(name(layout.kind())), ""};
  }
  if (gqa) {
    p.kv_heads = layout.dims().kv_heads;
    p.head_dim = layout.dims().head_dim;
    p.v_head_dim = layout.dims().v_head_dim;
    p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  } else {
    p.nope = layout.dims().nope;
    p.rope = layout.dims().rope;
  }
  if (p.kind == ProblemKind::window_compressed) p.compress_ratio = two_sources ? 4 : 0;
  return p;
}

Result<CallBatch> CallBatch::of(std::int64_t rows, bool by_list,
                                std::optional<std::vector<std::int32_t>> q_indptr,
                                std::optional<std::vector<std::int32_t>> kv_lens) {
  if (!kv_lens && !q_indptr && by_list) {
    const auto all = static_cast<std::int32_t>(rows);
    return CallBatch{{0, all}, {all}};
  }
  if (!kv_lens) {
    return Error{ErrorCode::invalid_argument, "kv_lens", "the number of keys of each request",
                 "nothing", ""};
  }
  CallBatch batch;
  batch.kv_lens = *std::move(kv_lens);
  if (q_indptr) {
    batch.q_indptr = *std::move(q_indptr);
    return batch;
  }
  if (Result<void> ok = check_a_row_each(std::ssize(batch.kv_lens), rows); !ok) return ok.error();
  batch.q_indptr.resize(batch.kv_lens.size() + 1);
  std::iota(batch.q_indptr.begin(), batch.q_indptr.end(), 0);
  return batch;
}

Result<void> check_a_row_each(std::int64_t requests, std::int64_t rows) {
  if (requests == rows) return {};
  return Error{ErrorCode::invalid_argument, "q_indptr",
               "the first row of each request, as not each request has one row", "nothing", ""};
}

}  // namespace lathe
