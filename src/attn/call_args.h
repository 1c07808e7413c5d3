// What one attention call by a caller of the library leaves out: the problem that follows from
// arrays and layout, and the requests that follow from rows and lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "attn/problem.h"
#include "base/result.h"
#include "layout/layout.h"

namespace lathe {

/// The named problem (problem_from_name) with the dims of the layout that its keys lie in, `heads`
/// query heads, and for V4 a second source or none. Errors: an unknown name, a layout of another
/// family.
Result<AttentionProblem> problem_of_call(std::string_view attention, const CacheLayout& layout,
                                         std::int32_t heads, bool two_sources);

/// The requests of `rows` query rows.
struct CallBatch {
  std::vector<std::int32_t> q_indptr;  // [requests + 1]
  std::vector<std::int32_t> kv_lens;   // [requests]

  /// Without q_indptr each request has a row; without either, index lists give the keys (by_list)
  /// and all rows are one request. Errors: no kv_lens where they are needed; no q_indptr where
  /// requests and rows differ in number.
  static Result<CallBatch> of(std::int64_t rows, bool by_list,
                              std::optional<std::vector<std::int32_t>> q_indptr,
                              std::optional<std::vector<std::int32_t>> kv_lens);
};

/// Errors: not as many requests as rows, where q_indptr is left out.
Result<void> check_a_row_each(std::int64_t requests, std::int64_t rows);

}  // namespace lathe
