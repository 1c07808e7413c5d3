// The lightning indexer on the CPU: logits of query rows over cached index keys, and the exact
// top-k of each row.
#pragma once

#include <cstdint>
#include <span>

#include "attn/index_args.h"
#include "base/arena.h"
#include "base/execution.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "kernels/operators.h"

namespace lathe {

/// Tile sizes; 0: chosen automatically. They affect time and memory, never a result.
struct IndexTiling {
  std::int64_t budget_bytes = std::int64_t{64} << 20;  // most scratch of a call
  std::int64_t tile_keys = 0;                          // keys decoded at a time
  std::int64_t tile_rows = 0;                          // rows that share a decoded tile
  std::int64_t key_splits = 0;  // parts into which a row's keys are split for threads; top-k only
};

struct IndexLogits {
  IndexQuery query;
  IndexKeys keys;
  IndexRows rows;
  MutableRowsView logits;  // [rows, >= longest length] f32
  IndexTiling tiling;
  Execution execution;
};

/// The logits of attn/index_args.h in f32 for columns j < lens[t], and -inf after them. NaN if a
/// key's page is missing, or the key or its scale is NaN. The error is at most 1e-5 of the sum of
/// magnitudes. Errors, with nothing written: check_index_args(); a view of another shape; a budget
/// too small for one tile (code exhausted).
Result<void> index_logits(const IndexLogits& args);

struct IndexTopK {
  IndexQuery query;
  IndexKeys keys;
  IndexRows rows;
  IndexTarget target;
  std::int64_t k = 0;
  std::span<std::int32_t> out;      // [rows, k]
  std::span<std::int32_t> lengths;  // [rows] out: entries of the row before the -1s; or empty
  IndexTiling tiling;
  Execution execution;
};

/// The k keys of each row with the largest logits, ascending by position, in the target's unit,
/// then -1. Ties go to the lower position. A NaN is never chosen, and -inf only if nothing better
/// is left. A row with lens[t] <= k gets 0 .. lens[t] - 1, and no logit is computed for it. A
/// position that the target does not have becomes -1 in its column. The budget bounds the memory:
/// no buffer has rows x context entries. Errors, with nothing written: the errors of
/// index_logits(); check_index_target().
Result<void> index_top_k(const IndexTopK& args);

/// Selects as index_top_k() from existing logits. logits: [rows, cols] f32; lens: [rows], each at
/// most cols; out: [rows, k]; lengths as above. Scratch: 8 bytes x min(2 k + 64, longest) per
/// thread. Errors: sizes that contradict each other; check_index_target().
Result<void> index_select(const RowsView& logits, std::span<const std::int32_t> lens,
                          const IndexTarget& target, std::int64_t k, std::span<std::int32_t> out,
                          std::span<std::int32_t> lengths, const Execution& execution);

/// Quantises the queries, with the codes in `arena`, and selects.
Result<void> cpu_select_keys(const Execution& execution, Arena& arena, const SelectKeys& op);

}  // namespace lathe
