// Allocates, slices and converts views of rows.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/rows_view.h"

namespace lathe {

/// Allocates uninitialised [rows, cols] in the arena; each row begins at a multiple of 64 bytes.
inline MutableRowsView alloc_rows(Arena& arena, std::int64_t rows, std::int64_t cols,
                                  DType dtype = DType::f32) {
  const std::int64_t per_line = 64 * 8 / bits_of(dtype);
  const std::int64_t stride = (cols + per_line - 1) / per_line * per_line;
  return {arena.take(bytes_of(dtype, rows * stride)), dtype, rows, cols, stride};
}

inline RowsView constant(const MutableRowsView& v) {
  return {v.data, v.dtype, v.rows, v.cols, v.row_stride};
}

/// Rows first .. first + count - 1.
template <class Byte>
BasicRowsView<Byte> rows_at(const BasicRowsView<Byte>& v, std::int64_t first, std::int64_t count) {
  return {count == 0 ? v.data : v.row(first), v.dtype, count, v.cols, v.row_stride};
}

/// Columns first .. first + count - 1 of every row.
template <class Byte>
BasicRowsView<Byte> cols_at(const BasicRowsView<Byte>& v, std::int64_t first, std::int64_t count) {
  return {v.data + bytes_of(v.dtype, first), v.dtype, v.rows, count, v.row_stride};
}

}  // namespace lathe
