// Arrays of other libraries, as DLPack describes them, and their conversion to the library's own
// views. The C and the Python interface check their callers' arrays here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// DLPack's type codes (DLDataTypeCode).
enum class ArrayCode : std::uint8_t {
  signed_int = 0,
  unsigned_int = 1,
  floating = 2,
  bfloat = 4,
  boolean = 6,
  e4m3fn = 10,
  e5m2 = 12,
};

/// DLPack's DLDataType.
struct ArrayType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;

  bool is(ArrayCode wanted, int wanted_bits) const {
    return code == static_cast<std::uint8_t>(wanted) && bits == wanted_bits && lanes == 1;
  }
  /// "float32", "bfloat16", "float8_e4m3fn"
  std::string name() const;
};

/// An array in the caller's memory; a view. Errors of its functions name `argument`.
struct ArrayRef {
  std::string argument;
  std::byte* data = nullptr;
  ArrayType type;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;  // elements, one per axis

  std::size_t rank() const { return shape.size(); }
  /// "a float32 array of shape (3, 576)"
  std::string describe() const;
  Error wrong(std::string wanted, std::string offered, std::string hint = "") const;

  /// Errors: another rank; `axes` names the axes in the message: "[rows, row_elems]".
  Result<void> need_rank(std::size_t rank, const char* axes) const;
  /// Errors: the axes from `first` on are not contiguous.
  Result<void> need_dense(std::size_t first) const;
  bool overlaps(const ArrayRef& other) const;
};

/// float32, bfloat16, or uint16 as the bits of bfloat16; with `codes` also float8_e4m3fn, or uint8
/// as its codes. [rows, cols], or [rows, heads, dim] as rows of heads * dim; rank 1 or more.
Result<RowsView> rows_view(const ArrayRef& array, bool codes = false);
Result<MutableRowsView> mutable_rows_view(const ArrayRef& array);

/// uint8 or float8_e4m3fn of rank 1 (pages one after another) or 2 ([pages, bytes of a page], a
/// view if pages lie further apart). Errors: a page size out of range, bytes that are not whole
/// pages, pages that are too short, and dense rows that are longer than a page, which are those of
/// another layout or page size.
Result<PoolView> pool_view(const ArrayRef& array, const CacheLayout& layout,
                           std::int32_t page_size);

/// Copies an int32 or int64 array of the given rank and any strides to int32. Errors: a number
/// outside int32, with its index.
Result<std::vector<std::int32_t>> int32_list(const ArrayRef& array, std::size_t rank,
                                             const char* axes);
Result<std::vector<Slot>> slot_list(const ArrayRef& array);
Result<std::vector<PageId>> page_list(const ArrayRef& array);

/// Copies a float32 array of any strides to a dense list.
Result<std::vector<float>> float_list(const ArrayRef& array, std::size_t rank, const char* axes);

/// A dense int32 or float32 array in GPU memory, which is not copied.
Result<std::span<const std::int32_t>> int32_span(const ArrayRef& array, std::size_t rank,
                                                 const char* axes);
Result<std::span<const float>> float_span(const ArrayRef& array, std::size_t rank,
                                          const char* axes);
/// A dense, writable uint8 array [bytes].
Result<std::span<std::byte>> byte_span(const ArrayRef& array);

}  // namespace lathe
