// Views of a matrix that do not own it. The elements of a row are contiguous; rows may have any
// stride.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace lathe {

template <class Byte>
struct BasicRowsView {
  Byte* data = nullptr;      // [rows, cols] elements of dtype; row r begins at r * row_stride
  DType dtype = DType::f32;  // never a sub-byte type
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // in elements, >= cols

  Byte* row(std::int64_t r) const { return data + bytes_of(dtype, r * row_stride); }
};

using RowsView = BasicRowsView<const std::byte>;
using MutableRowsView = BasicRowsView<std::byte>;

}  // namespace lathe
