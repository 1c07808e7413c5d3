// Arrays of a Python caller as the views that the library takes. They come through DLPack or the
// buffer protocol; nothing is copied but index lists, which are narrowed to int32.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/rows_view.h"
#include "layout/index_units.h"
#include "layout/pool_view.h"

namespace lathe::python {

namespace nb = nanobind;

inline constexpr int kHost = -1;

/// An imported array in host memory, or in that of GPU `place`. It keeps the caller's memory alive,
/// and is to be destroyed while the interpreter's lock is held. Lists are only read from host
/// memory.
class Array {
 public:
  /// Errors: TypeError for what is not an array; LatheError for an array that lies elsewhere, or a
  /// read-only one where it is to be written.
  Array(std::string argument, nb::handle object, bool writable = false, int place = kHost);

  const std::string& argument() const { return argument_; }
  std::size_t ndim() const { return array_.ndim(); }
  std::int64_t shape(std::size_t i) const { return static_cast<std::int64_t>(array_.shape(i)); }
  std::int64_t stride(std::size_t i) const { return array_.stride(i); }  // elements
  std::byte* data() const;
  nb::dlpack::dtype dtype() const { return array_.dtype(); }

  /// "a float32 array of shape (3, 576)"
  std::string describe() const;
  [[noreturn]] void refuse(std::string wanted, std::string offered, std::string hint = "") const;

  /// Errors: another rank; `shape` names the axes, as "[rows, row_elems]".
  void need_rank(std::size_t rank, const char* shape) const;
  /// Errors: elements of the axes from `first` on that do not lie side by side.
  void need_dense(std::size_t first) const;
  bool overlaps(const Array& other) const;

 private:
  std::string argument_;
  nb::ndarray<nb::ro> array_;
};

/// float32, bfloat16, or uint16 as the bits of bfloat16; with `codes` also float8_e4m3fn, or uint8
/// as its codes. [rows, cols], or [rows, heads, dim] as rows of heads * dim.
RowsView rows_view(const Array& array, bool codes = false);
MutableRowsView mutable_rows_view(const Array& array);

/// uint8 or float8 of rank 1 (pages one after another) or 2 ([pages, stride in bytes]). Errors: a
/// page size out of range, bytes that are not whole pages, pages that are too short.
PoolView pool_view(const Array& array, const CacheLayout& layout, std::int32_t page_size);

/// int32 or int64 of the given rank, narrowed. Errors: a number outside int32, by its place.
std::vector<std::int32_t> int32_list(const Array& array, std::size_t rank, const char* shape);
std::vector<Slot> slot_list(const Array& array);

/// A dense int32 array of a GPU, as it lies there.
std::span<const std::int32_t> int32_span(const Array& array, std::size_t rank, const char* shape);
std::span<const float> float_span(const Array& array, std::size_t rank, const char* shape);

/// float32 of any strides, copied densely.
std::vector<float> float_list(const Array& array, std::size_t rank, const char* shape);

}  // namespace lathe::python
