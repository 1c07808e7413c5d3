// How many pages of how many tokens a pool has: all that index lists need to know about it.
#pragma once

#include <cstdint>
#include <limits>

#include "base/result.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// Slots are int32, so a pool stays below this many of them.
inline constexpr std::int64_t kMaxSlots = std::numeric_limits<std::int32_t>::max();

struct PoolShape {
  std::int32_t page_size = 64;  // tokens (or compressed entries) of one page
  std::int64_t pages = 0;

  constexpr std::int64_t slots() const { return pages * page_size; }
  constexpr bool holds(PageId page) const { return page.value >= 0 && page.value < pages; }
  constexpr bool holds(Slot slot) const { return slot.value >= 0 && slot.value < slots(); }
  constexpr bool operator==(const PoolShape&) const = default;
};

/// Errors: a page size outside 1 to kMaxPageSize, fewer than one page, more than kMaxSlots slots.
Result<void> check_pool_shape(PoolShape shape);

}  // namespace lathe
