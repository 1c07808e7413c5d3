// The four units in which a token's place is counted. They are distinct types so that mixing them
// does not compile: a slot used as a page, or a position used as a slot, reads another request's
// bytes without crashing.
#pragma once

#include <compare>
#include <cstdint>

namespace lathe {

/// Values are 32 bits wide because index lists are read by the billion; every byte offset made from
/// one is 64 bits wide.
template <class Tag>
struct IndexUnit {
  std::int32_t value = -1;

  constexpr IndexUnit() = default;
  constexpr explicit IndexUnit(std::int32_t v) : value(v) {}
  /// -1 marks a hole: no key, no page, nothing to write.
  constexpr bool is_hole() const { return value == -1; }
  constexpr auto operator<=>(const IndexUnit&) const = default;
};

/// Place of a token in a pool: page * page_size + offset.
using Slot = IndexUnit<struct SlotTag>;
/// Number of a page in a pool.
using PageId = IndexUnit<struct PageTag>;
/// Position of a token in its request.
using LocalPos = IndexUnit<struct LocalTag>;
/// Row of a compact buffer made for one batch.
using RaggedRow = IndexUnit<struct RaggedTag>;

static_assert(sizeof(Slot) == 4, "index lists are arrays of int32");

constexpr Slot slot_of(PageId page, std::int32_t page_size, std::int32_t offset) {
  return Slot(page.value * page_size + offset);
}
constexpr PageId page_of(Slot slot, std::int32_t page_size) {
  return PageId(slot.value / page_size);
}
constexpr std::int32_t offset_in_page(Slot slot, std::int32_t page_size) {
  return slot.value % page_size;
}

}  // namespace lathe
