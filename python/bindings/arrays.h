// Imports a Python caller's arrays, through DLPack or the buffer protocol, as the library's views.
// Copies nothing but index lists, which are narrowed to int32.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capi/array_ref.h"
#include "errors.h"

namespace lathe::python {

namespace nb = nanobind;

inline constexpr int kHost = -1;

/// An imported array in host memory, or in the memory of GPU `place`. Keeps the caller's memory
/// alive; destroy it while holding the interpreter's lock. Lists are only read from host memory.
class Array {
 public:
  /// Errors: TypeError for what is not an array; LatheError for an array in other memory, or a
  /// read-only one that is to be written.
  Array(std::string argument, nb::handle given, bool writable = false, int place = kHost);

  const ArrayRef& ref() const { return ref_; }
  const std::string& argument() const { return ref_.argument; }
  std::size_t ndim() const { return ref_.rank(); }
  std::int64_t shape(std::size_t i) const { return ref_.shape[i]; }

  /// "a float32 array of shape (3, 576)"
  std::string describe() const { return ref_.describe(); }
  [[noreturn]] void refuse(std::string wanted, std::string offered, std::string hint = "") const {
    raise(ref_.wrong(std::move(wanted), std::move(offered), std::move(hint)));
  }
  /// Errors: another rank; `axes` names them, as "[rows, row_elems]".
  void need_rank(std::size_t rank, const char* axes) const {
    value_or_raise(ref_.need_rank(rank, axes));
  }

 private:
  nb::ndarray<nb::ro> array_;
  ArrayRef ref_;
};

// The views of capi/array_ref.h, with their errors raised.
inline RowsView rows_view(const Array& array, bool codes = false) {
  return value_or_raise(lathe::rows_view(array.ref(), codes));
}
inline MutableRowsView mutable_rows_view(const Array& array) {
  return value_or_raise(lathe::mutable_rows_view(array.ref()));
}
inline PoolView pool_view(const Array& array, const CacheLayout& layout, std::int32_t page_size) {
  return value_or_raise(lathe::pool_view(array.ref(), layout, page_size));
}
inline std::vector<std::int32_t> int32_list(const Array& array, std::size_t rank,
                                            const char* axes) {
  return value_or_raise(lathe::int32_list(array.ref(), rank, axes));
}
inline std::vector<Slot> slot_list(const Array& array) {
  return value_or_raise(lathe::slot_list(array.ref()));
}
inline std::vector<PageId> page_list(const Array& array) {
  return value_or_raise(lathe::page_list(array.ref()));
}
inline std::vector<float> float_list(const Array& array, std::size_t rank, const char* axes) {
  return value_or_raise(lathe::float_list(array.ref(), rank, axes));
}

inline std::span<const std::int32_t> int32_span(const Array& array, std::size_t rank,
                                                const char* axes) {
  return value_or_raise(lathe::int32_span(array.ref(), rank, axes));
}
inline std::span<const float> float_span(const Array& array, std::size_t rank, const char* axes) {
  return value_or_raise(lathe::float_span(array.ref(), rank, axes));
}

}  // namespace lathe::python
