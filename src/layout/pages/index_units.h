// The four units for the place of a token. They are distinct types, so mixing them does not
// compile: a slot used as a page, or a position used as a slot, would silently read another
// request's bytes.
#pragma once

#include <compare>
#include <cstdint>

namespace lathe {

/// 32 bits, because kernels read very many of them. Byte offsets computed from them have 64 bits.
template <class Tag>
struct IndexUnit {
  std::int32_t value = -1;

  constexpr IndexUnit() = default;
  constexpr explicit IndexUnit(std::int32_t v) : value(v) {}
  /// -1 marks a hole: no key, no page, nothing to write.
  constexpr bool is_hole() const { return value == -1; }
  constexpr auto operator<=>(const IndexUnit&) const = default;
};

/// Place of a token in a pool: page * page_size + offset in the page.
using Slot = IndexUnit<struct SlotTag>;
/// Number of a page in a pool.
using PageId = IndexUnit<struct PageTag>;
/// Position of a token in its request.
using LocalPos = IndexUnit<struct LocalTag>;
/// Row of a compact buffer, which is made for one batch.
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
