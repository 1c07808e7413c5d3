// PoolShape: pages and tokens per page of a pool, which is all that index lists need.
#pragma once

#include <cstdint>
#include <limits>

#include "base/result.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// Most slots of a pool, because slots are int32.
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
