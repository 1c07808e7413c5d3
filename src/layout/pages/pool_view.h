// A view of a pool's bytes that does not own them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/layout.h"
#include "layout/pages/index_units.h"

namespace lathe {

template <class Byte>
struct BasicPoolView {
  Byte* data = nullptr;  // [pages] x page_stride bytes
  CacheLayout layout;
  std::int32_t page_size = 64;
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;  // bytes, >= layout.page_stride(page_size)

  BasicPoolView(Byte* bytes, const CacheLayout& l, std::int32_t tokens_per_page,
                std::int64_t page_count)
      : data(bytes),
        layout(l),
        page_size(tokens_per_page),
        pages(page_count),
        page_stride(l.page_stride(tokens_per_page)) {}
  BasicPoolView(Byte* bytes, const CacheLayout& l, std::int32_t tokens_per_page,
                std::int64_t page_count, std::int64_t stride)
      : data(bytes),
        layout(l),
        page_size(tokens_per_page),
        pages(page_count),
        page_stride(stride) {}
  operator BasicPoolView<const Byte>() const {
    return {data, layout, page_size, pages, page_stride};
  }

  std::int64_t slots() const { return pages * page_size; }
  std::int64_t bytes() const { return pages * page_stride; }
  bool holds(Slot s) const { return s.value >= 0 && s.value < slots(); }
  /// First byte of `part` of the token in `slot`. Precondition: holds(slot).
  Byte* at(const Part& part, Slot slot) const {
    return data + std::int64_t{page_of(slot, page_size).value} * page_stride +
           layout.offset_of(part, page_size, offset_in_page(slot, page_size));
  }
};

using PoolView = BasicPoolView<std::byte>;
using ConstPoolView = BasicPoolView<const std::byte>;

}  // namespace lathe
