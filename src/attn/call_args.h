// Fills in what a caller of the library may leave out in an attention call: the problem, from the
// arrays and the layout, and the requests, from the rows and lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "attn/problem.h"
#include "base/result.h"
#include "layout/layout.h"

namespace lathe {

/// The problem of that name (problem_from_name) with the dims of `layout`, which holds its keys,
/// `heads` query heads and, for V4, a second source if `two_sources`. Errors: an unknown name; a
/// grouped-query layout for a latent problem, or the reverse.
Result<AttentionProblem> problem_of_call(std::string_view attention, const CacheLayout& layout,
                                         std::int32_t heads, bool two_sources);

/// The requests of `rows` query rows.
struct CallBatch {
  std::vector<std::int32_t> q_indptr;  // [requests + 1]
  std::vector<std::int32_t> kv_lens;   // [requests]

  /// Without q_indptr, every request has one row. With index lists (by_list) both may be missing:
  /// all rows are then one request. Errors: kv_lens missing otherwise; q_indptr missing although
  /// there are not as many requests as rows.
  static Result<CallBatch> of(std::int64_t rows, bool by_list,
                              std::optional<std::vector<std::int32_t>> q_indptr,
                              std::optional<std::vector<std::int32_t>> kv_lens);
};

/// Error if requests != rows; for calls without q_indptr, where each request has one row.
Result<void> check_a_row_each(std::int64_t requests, std::int64_t rows);

}  // namespace lathe
