// The lightning indexer in double: logits straight from the formula, selection by a full sort.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/index_args.h"
#include "kernels/operators.h"

namespace lathe {

/// logits[t * cols + j], as defined in attn/index_args.h, for j < lens[t], and -inf for j >=
/// lens[t]; NaN if the key's page is missing. `magnitudes`, if not empty, gets |key_scale| *
/// sum_h sum_d |q k| |weight|, to measure rounding errors against. Both: [rows, cols], cols >=
/// every length. Errors: check_index_args(); sizes that contradict each other.
Result<void> ref_index_logits(const IndexQuery& query, const IndexKeys& keys, const IndexRows& rows,
                              std::int64_t cols, std::span<double> logits,
                              std::span<double> magnitudes);

/// Positions of the k best of scores [n], ascending. All positions if n <= k; otherwise the k
/// largest scores, ties to the lower position (-0 equals 0), never a NaN.
std::vector<std::int32_t> ref_top_k(std::span<const float> scores, std::int64_t k);

/// Errors: check_index_args().
Result<void> ref_select_keys(const SelectKeys& op);

}  // namespace lathe
