// Non-owning views of a matrix of rows. Rows are dense inside; the stride between rows is free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace lathe {

template <class Byte>
struct BasicRowsView {
  Byte* data = nullptr;      // [rows, cols] elements of dtype, row r at r * row_stride
  DType dtype = DType::f32;  // never a sub-byte type
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // elements, >= cols

  Byte* row(std::int64_t r) const { return data + bytes_of(dtype, r * row_stride); }
};

using RowsView = BasicRowsView<const std::byte>;
using MutableRowsView = BasicRowsView<std::byte>;

}  // namespace lathe
