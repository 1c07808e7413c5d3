// Index lists made from page lists: ragged slots, ragged pages, padded slot tables, and the
// translation of positions to slots.
//
// A ragged list and a table are not interchangeable: the first is addressed by indptr[r] + i, the
// second by r * width + i. Hence their distinct types.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/page_table.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// Request r has items[indptr[r], indptr[r + 1]); both count items of type Index.
template <class Index>
struct RaggedList {
  std::vector<std::int64_t> indptr;  // [requests + 1]; 64 bits: a batch may exceed 2^31 tokens
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

/// The positions of each request: [starts[r], starts[r] + lengths[r]), in tokens. Empty starts are
/// all 0.
struct TokenRanges {
  std::span<const std::int32_t> lengths;  // [requests]
  std::span<const std::int32_t> starts;   // [requests] or empty
};

/// items[indptr[r] + i] = slot of position starts[r] + i of request r, for i < lengths[r]. Starts
/// need not be page-aligned; pages outside the ranges may be holes. Errors, naming request and
/// index: lengths or starts that are not one per request, a negative length or start, a range past
/// the request's pages, a page in the range that is -1 or outside the pool.
Result<RaggedSlots> ragged_slots(const PageLists& lists, PoolShape pool, TokenRanges ranges);

/// The pages that hold the ranges: ceil(lengths[r] / page_size) of them from starts[r] / page_size.
/// Errors: as ragged_slots(), and a start that is not page-aligned.
Result<RaggedPages> ragged_pages(const PageLists& lists, PoolShape pool, TokenRanges ranges);

/// ragged_slots() as a table [requests, width], -1 past a request's length.
/// Errors: as ragged_slots() and table_shape().
Result<SlotTable> slot_table(const PageLists& lists, PoolShape pool, TokenRanges ranges,
                             TableOptions options = {});

/// out[i] = slot of position local[i] of a request of `length` tokens. A hole stays a hole; a
/// position outside [0, length), or on a page that is missing, -1 or outside the pool, becomes one:
/// no index list can make a kernel read another request's bytes. `local` and `out` must not
/// overlap.
/// Errors: a bad pool shape, a size of `out` other than that of `local`; nothing is written then.
Result<void> local_to_slots(PageLists::List pages, PoolShape pool, std::int32_t length,
                            std::span<const LocalPos> local, std::span<Slot> out);

}  // namespace lathe
