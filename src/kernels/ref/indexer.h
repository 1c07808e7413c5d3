// The indexer in double: logits straight from the formula, and selection by a full sort.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/index_args.h"
#include "kernels/operators.h"

namespace lathe {

/// logits[t * cols + j] of attn/index_args.h for j < lens[t] and -inf past it; NaN where the key's
/// page is missing. magnitudes, if not empty, gets |key_scale| * sum_h sum_d |q k| |weight|, what a
/// rounding error is measured against. Both: [rows, cols], cols >= every length.
/// Errors: check_index_args(), sizes that contradict each other.
Result<void> ref_index_logits(const IndexQuery& query, const IndexKeys& keys, const IndexRows& rows,
                              std::int64_t cols, std::span<double> logits,
                              std::span<double> magnitudes);

/// The k best of scores [n], positions ascending: all of them where n <= k; otherwise the largest,
/// ties to the lower position (-0 equals 0), never a NaN.
std::vector<std::int32_t> ref_top_k(std::span<const float> scores, std::int64_t k);

/// Errors: those of check_index_args().
Result<void> ref_select_keys(const SelectKeys& op);

}  // namespace lathe
