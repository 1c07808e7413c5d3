#include "attn/index_transform.h"

#include <fmt/format.h>

#include <algorithm>

#include "attn/check_count.h"
#include "base/integers.h"

namespace lathe {
namespace {

// Number of keys of row t: positions from here on are not keys.
std::int64_t limit(const LocalLists& lists, std::int64_t t) {
  return lists.lens.empty() ? kMaxInt32 : lists.lens[static_cast<std::size_t>(t)];
}

RaggedRow compact_row(std::int64_t row, std::int64_t compact_rows) {
  return row >= 0 && row < compact_rows ? RaggedRow(static_cast<std::int32_t>(row)) : RaggedRow();
}

}  // namespace

Result<void> check_local_counts(const LocalLists& lists, std::int64_t rows, std::int64_t out) {
  if (auto ok = check_range("width", lists.width, 0); !ok) return ok;
  if (auto ok = check_range("rows", rows, 0); !ok) return ok;
  if (auto ok = check_count("positions", lists.positions, rows * lists.width); !ok) return ok;
  if (!lists.lens.empty()) {
    if (auto ok = check_count("lens", lists.lens, rows); !ok) return ok;
  }
  if (out == rows * lists.width) return {};
  return bad_number("out", fmt::format("{} entries", rows * lists.width), out);
}

Result<void> local_to_slots(const LocalLists& lists, std::span<const std::int32_t> row_request,
                            PageTableView table, PoolShape pool, std::span<Slot> out) {
  const std::int64_t rows = std::ssize(row_request);
  if (auto ok = check_pool_shape(pool); !ok) return ok;
  if (auto ok = check_local_counts(lists, rows, std::ssize(out)); !ok) return ok;
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int32_t request = row_request[static_cast<std::size_t>(t)];
    if (request < -1 || request >= table.requests) {
      return bad_number(fmt::format("row_request[{}]", t),
                        fmt::format("-1 or one of {} requests", table.requests), request);
    }
  }
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int32_t request = row_request[static_cast<std::size_t>(t)];
    const auto pages = request < 0 ? std::span<const PageId>() : table.row(request);
    const std::int64_t end = limit(lists, t);
    for (std::int64_t i = t * lists.width; i < (t + 1) * lists.width; ++i) {
      const LocalPos p = lists.positions[static_cast<std::size_t>(i)];
      out[static_cast<std::size_t>(i)] = p.value < end ? slot_at(pages, pool, p) : Slot();
    }
  }
  return {};
}

Result<void> local_to_ragged(const LocalLists& lists, std::span<const std::int32_t> row_offset,
                             std::int64_t compact_rows, std::span<RaggedRow> out) {
  const std::int64_t rows = std::ssize(row_offset);
  if (auto ok = check_local_counts(lists, rows, std::ssize(out)); !ok) return ok;
  if (auto ok = check_range("compact_rows", compact_rows, 0); !ok) return ok;
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int64_t offset = row_offset[static_cast<std::size_t>(t)];
    const std::int64_t end = limit(lists, t);
    for (std::int64_t i = t * lists.width; i < (t + 1) * lists.width; ++i) {
      const std::int64_t p = lists.positions[static_cast<std::size_t>(i)].value;
      out[static_cast<std::size_t>(i)] =
          p >= 0 && p < end ? compact_row(offset + p, compact_rows) : RaggedRow();
    }
  }
  return {};
}

Result<void> check_combine_counts(const CombineLists& c, std::span<const RaggedRow> out,
                                  std::span<const std::int32_t> lengths) {
  const std::int64_t rows = std::ssize(c.positions);
  if (auto ok = check_range("ratio", c.ratio, 1); !ok) return ok;
  if (auto ok = check_range("window", c.window, 0); !ok) return ok;
  if (auto ok = check_range("multiple", c.multiple, 1); !ok) return ok;
  if (auto ok = check_range("entry_width", c.entry_width, 0); !ok) return ok;
  if (auto ok = check_range("compact_rows", c.compact_rows, 0); !ok) return ok;
  const std::int64_t listed = c.all_entries ? 0 : rows * c.entry_width;
  if (auto ok = check_count("entries", c.entries, listed); !ok) return ok;
  if (auto ok = check_count("entry_base", c.entry_base, rows); !ok) return ok;
  if (auto ok = check_count("window_base", c.window_base, rows); !ok) return ok;
  if (auto ok = check_count("window_start", c.window_start, rows); !ok) return ok;
  if (auto ok = check_count("lengths", lengths, rows); !ok) return ok;
  return check_count("out", out, rows * combined_width(c.entry_width, c.window, c.multiple));
}

namespace {

Result<void> check_entries_fit(const CombineLists& c) {
  if (!c.all_entries) return {};
  for (std::int64_t t = 0; t < std::ssize(c.positions); ++t) {
    const std::int64_t p = c.positions[static_cast<std::size_t>(t)].value;
    if ((p + 1) / c.ratio > c.entry_width) {
      return bad_number(
          "entry_width",
          fmt::format("at least the {} entries that row {} sees", (p + 1) / c.ratio, t),
          c.entry_width);
    }
  }
  return {};
}

// Writes one row, the entries and then the window. Returns its length.
std::int64_t combine_row(const CombineLists& c, std::int64_t t, RaggedRow* out) {
  const auto row = static_cast<std::size_t>(t);
  const std::int64_t p = c.positions[row].value;
  const std::int64_t visible = (p + 1) / c.ratio;
  const std::int64_t listed = c.all_entries ? visible : c.entry_width;
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < listed; ++i) {
    const std::int64_t j =
        c.all_entries ? i : c.entries[static_cast<std::size_t>(t * c.entry_width + i)].value;
    out[i] =
        j >= 0 && j < visible ? compact_row(c.entry_base[row] + j, c.compact_rows) : RaggedRow();
    if (!out[i].is_hole()) n = i + 1;
  }
  for (std::int64_t key = std::max<std::int64_t>(0, p - c.window + 1); key <= p; ++key) {
    const std::int64_t start = c.window_start[row];
    out[n++] =
        key >= start ? compact_row(c.window_base[row] + key - start, c.compact_rows) : RaggedRow();
  }
  return n;
}

}  // namespace

Result<void> combine_index_lists(const CombineLists& lists, std::span<RaggedRow> out,
                                 std::span<std::int32_t> lengths) {
  if (auto ok = check_combine_counts(lists, out, lengths); !ok) return ok;
  if (auto ok = check_entries_fit(lists); !ok) return ok;
  const std::int64_t width = combined_width(lists.entry_width, lists.window, lists.multiple);
  for (std::int64_t t = 0; t < std::ssize(lists.positions); ++t) {
    RaggedRow* row = out.data() + t * width;
    const bool padding = lists.positions[static_cast<std::size_t>(t)].value < 0;
    const std::int64_t n = padding ? 0 : combine_row(lists, t, row);
    std::fill(row + n, row + width, RaggedRow());
    lengths[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(n);
  }
  return {};
}

}  // namespace lathe
