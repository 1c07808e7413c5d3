// Work lists: the keys of rows, split into work items for a number of workers. A list is in
// ordinary memory (on a GPU: global memory), so it does not limit the number of rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace lathe {

/// Keys [first, first + count) of a row (or request). `split` numbers the items of a row, from 0 in
/// the order of its keys. GPU code reads this struct, so order and width of the fields are fixed.
struct WorkItem {
  std::int32_t row = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;  // never 0
  std::int32_t split = 0;

  bool operator==(const WorkItem&) const = default;
};

struct WorkOptions {
  std::int32_t workers = 1;  // thread blocks, or threads
  std::int32_t block = 64;   // balanced mode splits only at multiples of this many keys of a row
  // Batch-invariant mode: every split has this many keys, the last one the rest, so a row's splits
  // depend only on the row. 0: balanced mode, splits give each worker the same number of keys.
  std::int32_t fixed_split = 0;

  bool operator==(const WorkOptions&) const = default;
};

/// Row r has keys [firsts[r], firsts[r] + counts[r]). If `firsts` is empty they are all 0.
struct KeyRanges {
  std::span<const std::int32_t> counts;  // [rows]
  std::span<const std::int32_t> firsts;  // [rows] or empty
};

struct WorkListView {
  std::span<const WorkItem> items;
  std::span<const std::int64_t> row_items;     // [rows + 1] row r has items [r] .. [r + 1] - 1
  std::span<const std::int64_t> worker_items;  // [workers + 1] the same for worker w

  std::int64_t splits(std::int64_t row) const {
    const auto r = static_cast<std::size_t>(row);
    return row_items[r + 1] - row_items[r];
  }
};

/// Memory of a list. The caller owns it.
struct WorkBuffers {
  std::span<WorkItem> items;             // at least max_work_items()
  std::span<std::int64_t> row_items;     // at least rows + 1
  std::span<std::int64_t> worker_items;  // at least workers + 1
};

/// Most items for `rows` rows of at most `longest` keys.
std::int64_t max_work_items(std::int64_t rows, std::int64_t longest, const WorkOptions& options);

/// Makes the list. Items are in the order of rows and, within a row, of keys; each key is in
/// exactly one item, and a row without keys has none. A worker gets consecutive items; in balanced
/// mode the workers' work differs by at most one block. O(rows + workers), without allocation; the
/// same input gives the same list. Errors: options below 1, a negative count or first, a range
/// beyond int32, buffers too small (code exhausted).
Result<WorkListView> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                               const WorkBuffers& buffers);

/// A work list that owns its memory.
struct WorkList {
  std::vector<WorkItem> items;
  std::vector<std::int64_t> row_items;
  std::vector<std::int64_t> worker_items;

  WorkListView view() const { return {items, row_items, worker_items}; }
};
Result<WorkList> make_work_list(const KeyRanges& ranges, const WorkOptions& options);

}  // namespace lathe
