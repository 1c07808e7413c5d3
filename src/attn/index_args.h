// The arguments of an indexer, for all devices. An indexer selects the cached keys that matter most
// to a query row (DeepSeek sparse attention).
//
//   logit[t, j] = key_scale[j] * sum_h relu(<q[t, h], key[j]>) * weight[t, h]
//
// The weights include the scale of q and the constants heads^-0.5 and dim^-0.5, as in DeepSeek
// V3.2's published code. Weights may be negative, so logits may be, too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/enum.h"
#include "base/float_formats.h"
#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/page_table.h"
#include "layout/pages/pool_shape.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Quantised queries.
struct IndexQuery {
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  std::span<const e4m3> codes;     // [rows, heads, dim]
  std::span<const float> weights;  // [rows, heads], with the factors above

  std::int64_t rows() const { return heads == 0 ? 0 : std::ssize(weights) / heads; }
};

/// Keys in a pool of layout index_fp8, named by a page table; or contiguous keys.
struct IndexKeys {
  std::optional<ConstPoolView> pool;
  PageTableView page_table;  // [requests, width] pages of the pool; -1: no keys there

  std::span<const e4m3> codes;    // [n, dim], used if pool is empty
  std::span<const float> scales;  // [n]
};

/// Which keys each row may select: its keys 0 .. lens[t] - 1.
struct IndexRows {
  std::span<const std::int32_t> lens;     // [rows]; V4: compressed entries
  std::span<const std::int32_t> request;  // [rows] row of the page table; -1: no keys; with a pool
  std::span<const std::int32_t> first;    // [rows] key 0 of the row; with contiguous keys
};

/// Errors: widths, counts or a layout that contradict each other; a length that is negative, or
/// beyond the page table or the contiguous keys; a request outside the table.
Result<void> check_index_args(const IndexQuery& query, const IndexKeys& keys,
                              const IndexRows& rows);

/// The unit of the selected keys. `local`: positions of the request.
#define LATHE_INDEX_TARGET_UNITS(X) X(local) X(slot) X(ragged_row)
LATHE_ENUM(IndexTargetUnit, LATHE_INDEX_TARGET_UNITS)

/// How selected positions become indices for an attention kernel (attn/index_transform.h).
struct IndexTarget {
  IndexTargetUnit unit = IndexTargetUnit::local;
  PageTableView table = {};                       // slot: pages in the pool of attention's keys
  PoolShape pool = {};                            // slot
  std::span<const std::int32_t> request = {};     // slot: [rows] row of `table`; -1 gives holes
  std::span<const std::int32_t> row_offset = {};  // ragged_row: [rows] compact row of position 0
  std::int64_t compact_rows = 0;                  // ragged_row
};

/// Errors: counts other than `rows`, a request outside the table, a bad pool shape, a number of
/// compact rows beyond int32.
Result<void> check_index_target(const IndexTarget& target, std::int64_t rows);

/// Position p of row t in the target's unit; -1 if it has no place there.
std::int32_t in_target(const IndexTarget& target, std::int64_t t, LocalPos p);

}  // namespace lathe
