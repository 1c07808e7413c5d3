// Makes index lists from page lists: ragged slots, ragged pages and padded slot tables. Translates
// positions to slots.
//
// Item i of request r is at indptr[r] + i in a ragged list and at r * width + i in a table, so
// these are distinct types.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/page_table.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// Request r has items [indptr[r], indptr[r + 1]). indptr counts items, not bytes or tokens.
template <class Index>
struct RaggedList {
  std::vector<std::int64_t> indptr;  // [requests + 1]; a batch may have more than 2^31 tokens
  std::vector<Index> items;          // [indptr.back()]

  std::int64_t requests() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  std::span<const Index> of(std::int64_t r) const {
    const auto i = static_cast<std::size_t>(r);
    return std::span(items).subspan(static_cast<std::size_t>(indptr[i]),
                                    static_cast<std::size_t>(indptr[i + 1] - indptr[i]));
  }
};
using RaggedSlots = RaggedList<Slot>;
using RaggedPages = RaggedList<PageId>;
using SlotTable = IndexTable<Slot>;

/// Positions [starts[r], starts[r] + lengths[r]) of each request, in tokens. If `starts` is empty
/// they are all 0.
struct TokenRanges {
  std::span<const std::int32_t> lengths;  // [requests]
  std::span<const std::int32_t> starts;   // [requests] or empty
};

/// items[indptr[r] + i] = slot of position starts[r] + i of request r, for i < lengths[r]. Starts
/// need not be page-aligned. Pages outside the ranges may be holes. Errors name request and index:
/// not one length and start per request; a negative length or start; a range beyond the request's
/// pages; a page in the range that is -1 or outside the pool.
Result<RaggedSlots> ragged_slots(const PageLists& lists, PoolShape pool, TokenRanges ranges);

/// The pages of the ranges: ceil(lengths[r] / page_size) pages from page starts[r] / page_size on.
/// Errors: like ragged_slots(); a start that is not page-aligned.
Result<RaggedPages> ragged_pages(const PageLists& lists, PoolShape pool, TokenRanges ranges);

/// ragged_slots() as a table [requests, width], with -1 after a request's slots. Errors: like
/// ragged_slots() and table_shape().
Result<SlotTable> slot_table(const PageLists& lists, PoolShape pool, TokenRanges ranges,
                             TableOptions options = {});

/// out[i] = slot of position local[i] of a request of `length` tokens. A hole stays a hole. A
/// position outside [0, length), or on a page that is missing, -1 or outside the pool, becomes a
/// hole, so no list can make a kernel read another request's bytes. `local` and `out` must not
/// overlap. Errors, with nothing written: a bad pool shape; `out` and `local` of different sizes.
Result<void> local_to_slots(PageLists::List pages, PoolShape pool, std::int32_t length,
                            std::span<const LocalPos> local, std::span<Slot> out);

}  // namespace lathe
