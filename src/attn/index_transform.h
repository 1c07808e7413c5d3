// Index transforms: turn the positions that an indexer selected into indices for an attention
// kernel, Slot values for a pool or RaggedRow values for a compact buffer.
//
// No transform may add a key. A hole (-1), a position that the row may not attend to, and a
// position on a missing page become holes. Nothing is clamped, and no offset is added to a hole.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/page_table.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// The slot of position `p`, where `pages` is the request's row of the page table. A hole if p is
/// outside that row or its page is outside the pool.
inline Slot slot_at(std::span<const PageId> pages, PoolShape pool, LocalPos p) {
  if (p.value < 0) return Slot();
  const auto index = static_cast<std::size_t>(p.value / pool.page_size);
  if (index >= pages.size() || !pool.holds(pages[index])) return Slot();
  return slot_of(pages[index], pool.page_size, p.value % pool.page_size);
}

/// Lists of positions, one row per query row.
struct LocalLists {
  std::span<const LocalPos> positions;  // [rows, width]; -1 is a hole
  std::int64_t width = 0;
  std::span<const std::int32_t> lens;  // [rows] number of keys of the row; empty: no limit
};

/// out[t, i] = slot of position lists[t, i] of request row_request[t]. out: [rows, width];
/// row_request: [rows], -1 gives a row of holes. Errors, with nothing written: counts that
/// contradict each other, a request outside the table, a bad pool shape.
Result<void> local_to_slots(const LocalLists& lists, std::span<const std::int32_t> row_request,
                            PageTableView table, PoolShape pool, std::span<Slot> out);

/// out[t, i] = row_offset[t] + lists[t, i], where the compact buffer holds position p of row t's
/// request at row_offset[t] + p. out: [rows, width]. A row outside [0, compact_rows) becomes a
/// hole. Errors, with nothing written: counts that contradict each other, compact_rows past int32.
Result<void> local_to_ragged(const LocalLists& lists, std::span<const std::int32_t> row_offset,
                             std::int64_t compact_rows, std::span<RaggedRow> out);

/// V4's two sets of keys in one compact buffer: each request's compressed entries begin at its
/// entry_base, its window tokens, from position window_start on, at its window_base.
struct CombineLists {
  std::span<const LocalPos> positions;  // [rows] position of the query; -1 gives an empty row
  std::int32_t window = 0;              // keys are positions max(0, p - window + 1) .. p
  std::int32_t ratio = 1;               // entry j is visible if j < (p + 1) / ratio

  std::span<const LocalPos> entries;  // [rows, entry_width] selected entries, -1 is a hole
  std::int64_t entry_width = 0;
  bool all_entries = false;  // use every visible entry, in order; `entries` is empty

  std::span<const std::int32_t> entry_base;    // [rows] compact row of entry 0
  std::span<const std::int32_t> window_base;   // [rows] compact row of position window_start
  std::span<const std::int32_t> window_start;  // [rows] first position in the buffer
  std::int64_t compact_rows = 0;               // rows of the compact buffer
  std::int64_t multiple = 1;                   // list widths are multiples of this
};

/// Width of a list: entry_width + window, rounded up to `multiple`.
constexpr std::int64_t combined_width(std::int64_t entry_width, std::int64_t window,
                                      std::int64_t multiple) {
  return (entry_width + window + multiple - 1) / multiple * multiple;
}

/// out[t] = [entries + entry_base | window rows in order | -1 ...]; lengths[t] = number of entries
/// and window rows, 0 if the row has no keys. Holes among the entries stay where they are, except
/// that trailing ones are dropped: the window follows the last entry. out:
/// [rows, combined_width()]; lengths: [rows]. A key outside the compact buffer and a window
/// position before window_start become holes. Errors, with nothing written: counts that contradict
/// each other, a ratio or multiple below 1, a negative window, all_entries with more visible
/// entries than entry_width.
Result<void> combine_index_lists(const CombineLists& lists, std::span<RaggedRow> out,
                                 std::span<std::int32_t> lengths);

/// The checks above that need only counts, for lists in GPU memory. out: number of elements of the
/// output.
Result<void> check_local_counts(const LocalLists& lists, std::int64_t rows, std::int64_t out);
Result<void> check_combine_counts(const CombineLists& lists, std::span<const RaggedRow> out,
                                  std::span<const std::int32_t> lengths);

}  // namespace lathe
