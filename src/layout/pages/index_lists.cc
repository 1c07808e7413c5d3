#include "layout/pages/index_lists.h"

#include <fmt/format.h>

#include <algorithm>

namespace lathe {
namespace {

struct Range {
  std::int64_t start = 0;
  std::int64_t length = 0;
};

Range range_of(TokenRanges ranges, std::int64_t request) {
  const auto r = static_cast<std::size_t>(request);
  return {ranges.starts.empty() ? 0 : ranges.starts[r], ranges.lengths[r]};
}

Result<void> check_request(PageLists::List pages, PoolShape pool, std::int64_t r, Range range) {
  if (range.length < 0) {
    return Error{ErrorCode::invalid_argument, fmt::format("lengths[{}]", r), "0 or more",
                 fmt::format("{}", range.length), ""};
  }
  if (range.start < 0) {
    return Error{ErrorCode::invalid_argument, fmt::format("starts[{}]", r), "0 or more",
                 fmt::format("{}", range.start), ""};
  }
  if (range.length == 0) return {};
  const std::int64_t held = static_cast<std::int64_t>(pages.size()) * pool.page_size;
  if (range.start + range.length > held) {
    return Error{ErrorCode::out_of_range, fmt::format("lengths[{}]", r),
                 fmt::format("positions below {} ({} pages of {} tokens)", held, pages.size(),
                             pool.page_size),
                 fmt::format("positions {} to {}", range.start, range.start + range.length - 1),
                 "give the request more pages"};
  }
  const std::int64_t last = (range.start + range.length - 1) / pool.page_size;
  for (std::int64_t i = range.start / pool.page_size; i <= last; ++i) {
    const PageId page = pages[static_cast<std::size_t>(i)];
    if (pool.holds(page)) continue;
    return Error{ErrorCode::out_of_range, fmt::format("pages of request {}, index {}", r, i),
                 fmt::format("a page from 0 to {}", pool.pages - 1), fmt::format("{}", page.value),
                 page.is_hole() ? "the range needs this page, and it is a hole" : ""};
  }
  return {};
}

Result<void> check(const PageLists& lists, PoolShape pool, TokenRanges ranges) {
  if (auto ok = check_pool_shape(pool); !ok) return ok;
  const auto requests = static_cast<std::size_t>(lists.requests());
  if (ranges.lengths.size() != requests) {
    return Error{ErrorCode::invalid_argument, "lengths", fmt::format("{} entries", requests),
                 fmt::format("{}", ranges.lengths.size()), "one per request"};
  }
  if (!ranges.starts.empty() && ranges.starts.size() != requests) {
    return Error{ErrorCode::invalid_argument, "starts",
                 fmt::format("{} entries, or none", requests),
                 fmt::format("{}", ranges.starts.size()), "one per request"};
  }
  for (std::int64_t r = 0; r < lists.requests(); ++r) {
    if (auto ok = check_request(lists[r], pool, r, range_of(ranges, r)); !ok) return ok;
  }
  return {};
}

// Writes the slots of a checked range page by page, so it divides once per page, not per token.
Slot* write_slots(PageLists::List pages, PoolShape pool, Range range, Slot* out) {
  std::int64_t at = range.start;
  const std::int64_t end = range.start + range.length;
  while (at < end) {
    const std::int64_t index = at / pool.page_size;
    const auto offset = static_cast<std::int32_t>(at - index * pool.page_size);
    const std::int64_t run = std::min(end - at, std::int64_t{pool.page_size} - offset);
    const Slot first = slot_of(pages[static_cast<std::size_t>(index)], pool.page_size, offset);
    for (std::int32_t i = 0; i < run; ++i) *out++ = Slot(first.value + i);
    at += run;
  }
  return out;
}

}  // namespace

Result<RaggedSlots> ragged_slots(const PageLists& lists, PoolShape pool, TokenRanges ranges) {
  if (auto ok = check(lists, pool, ranges); !ok) return ok.error();
  RaggedSlots ragged;
  ragged.indptr.reserve(ranges.lengths.size() + 1);
  ragged.indptr.push_back(0);
  for (std::int32_t length : ranges.lengths) ragged.indptr.push_back(ragged.indptr.back() + length);
  ragged.items.resize(static_cast<std::size_t>(ragged.indptr.back()));
  Slot* out = ragged.items.data();
  for (std::int64_t r = 0; r < lists.requests(); ++r) {
    out = write_slots(lists[r], pool, range_of(ranges, r), out);
  }
  return ragged;
}

Result<RaggedPages> ragged_pages(const PageLists& lists, PoolShape pool, TokenRanges ranges) {
  if (auto ok = check(lists, pool, ranges); !ok) return ok.error();
  RaggedPages ragged;
  ragged.indptr.reserve(ranges.lengths.size() + 1);
  ragged.indptr.push_back(0);
  for (std::int64_t r = 0; r < lists.requests(); ++r) {
    const Range range = range_of(ranges, r);
    if (range.start % pool.page_size != 0) {
      return Error{ErrorCode::invalid_argument, fmt::format("starts[{}]", r),
                   fmt::format("a multiple of page_size {}", pool.page_size),
                   fmt::format("{}", range.start), "use ragged_slots() for other starts"};
    }
    const std::int64_t count = (range.length + pool.page_size - 1) / pool.page_size;
    if (count > 0) {
      const PageLists::List pages = lists[r].subspan(
          static_cast<std::size_t>(range.start / pool.page_size), static_cast<std::size_t>(count));
      ragged.items.insert(ragged.items.end(), pages.begin(), pages.end());
    }
    ragged.indptr.push_back(ragged.indptr.back() + count);
  }
  return ragged;
}

Result<SlotTable> slot_table(const PageLists& lists, PoolShape pool, TokenRanges ranges,
                             TableOptions options) {
  if (auto ok = check(lists, pool, ranges); !ok) return ok.error();
  std::int64_t longest = 0;
  for (std::int32_t length : ranges.lengths) longest = std::max<std::int64_t>(longest, length);
  const auto shape = table_shape(lists.requests(), longest, options);
  if (!shape) return shape.error();
  SlotTable table{std::vector<Slot>(static_cast<std::size_t>(shape->requests * shape->width)),
                  shape->requests, shape->width};
  for (std::int64_t r = 0; r < lists.requests(); ++r) {
    write_slots(lists[r], pool, range_of(ranges, r), table.entries.data() + r * shape->width);
  }
  return table;
}

Result<void> local_to_slots(PageLists::List pages, PoolShape pool, std::int32_t length,
                            std::span<const LocalPos> local, std::span<Slot> out) {
  if (auto ok = check_pool_shape(pool); !ok) return ok;
  if (out.size() != local.size()) {
    return Error{ErrorCode::invalid_argument, "out", fmt::format("{} slots", local.size()),
                 fmt::format("{}", out.size()), "one per position"};
  }
  for (std::size_t i = 0; i < local.size(); ++i) {
    const std::int32_t position = local[i].value;
    out[i] = Slot();
    if (position < 0 || position >= length) continue;
    const auto index = static_cast<std::size_t>(position / pool.page_size);
    if (index >= pages.size() || !pool.holds(pages[index])) continue;
    out[i] = slot_of(pages[index], pool.page_size, position % pool.page_size);
  }
  return {};
}

}  // namespace lathe
