// Work lists: rows' key ranges cut into items that a number of workers take, for any number of
// rows. A list lives in ordinary (on a device: global) memory, so no bound on rows follows from it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace lathe {

/// Keys [first, first + count) of a row (or request). The partial results of a row are numbered by
/// `split`, 0 and up in the order of its keys. Field order and width are the device's, too.
struct WorkItem {
  std::int32_t row = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;  // never 0
  std::int32_t split = 0;

  bool operator==(const WorkItem&) const = default;
};

struct WorkOptions {
  std::int32_t workers = 1;  // thread blocks, or threads
  std::int32_t block = 64;   // balanced mode cuts at multiples of this many keys of a row
  // Batch-invariant mode: every split is this many keys, the last one the rest, so a row's splits
  // depend on the row alone. 0: splits balance the workers.
  std::int32_t fixed_split = 0;

  bool operator==(const WorkOptions&) const = default;
};

/// Keys of row r: [firsts[r], firsts[r] + counts[r]). Empty firsts are all 0.
struct KeyRanges {
  std::span<const std::int32_t> counts;  // [rows]
  std::span<const std::int32_t> firsts;  // [rows] or empty
};

struct WorkListView {
  std::span<const WorkItem> items;
  std::span<const std::int64_t> row_items;     // [rows + 1] items of row r: [r], [r + 1]
  std::span<const std::int64_t> worker_items;  // [workers + 1] items of worker w: [w], [w + 1]

  std::int64_t splits(std::int64_t row) const {
    const auto r = static_cast<std::size_t>(row);
    return row_items[r + 1] - row_items[r];
  }
};

/// Memory for a list, owned by the caller.
struct WorkBuffers {
  std::span<WorkItem> items;             // at least max_work_items()
  std::span<std::int64_t> row_items;     // at least rows + 1
  std::span<std::int64_t> worker_items;  // at least workers + 1
};

/// Items that `rows` rows of at most `longest` keys can need.
std::int64_t max_work_items(std::int64_t rows, std::int64_t longest, const WorkOptions& options);

/// Items in the order of rows and, in a row, of keys; each key of each row lies in exactly one. A
/// row without keys has no item. Consecutive items go to a worker; in balanced mode workers differ
/// by at most one block. O(rows + workers); allocates nothing; the same input gives the same list.
/// Errors: options below 1, a negative count or first, a range beyond int32, buffers too small
/// (code exhausted).
Result<WorkListView> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                               const WorkBuffers& buffers);

/// A list that owns its memory.
struct WorkList {
  std::vector<WorkItem> items;
  std::vector<std::int64_t> row_items;
  std::vector<std::int64_t> worker_items;

  WorkListView view() const { return {items, row_items, worker_items}; }
};
Result<WorkList> make_work_list(const KeyRanges& ranges, const WorkOptions& options);

}  // namespace lathe
