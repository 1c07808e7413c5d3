#include "arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "errors.h"

namespace lathe::python {
namespace {

using nb::dlpack::dtype_code;

// Codes of DLPack 1.1, by number because nanobind names them in its later versions only.
constexpr std::uint8_t kE4m3Code = 10;
constexpr std::uint8_t kE5m2Code = 12;

bool is(nb::dlpack::dtype t, dtype_code code, int bits) {
  return t.code == static_cast<std::uint8_t>(code) && t.bits == bits && t.lanes == 1;
}
bool is_e4m3(nb::dlpack::dtype t) { return t.code == kE4m3Code && t.bits == 8 && t.lanes == 1; }

bool is_byte(nb::dlpack::dtype t) {
  return is(t, dtype_code::UInt, 8) || is_e4m3(t) ||
         (t.code == kE5m2Code && t.bits == 8 && t.lanes == 1);
}

std::string dtype_name(nb::dlpack::dtype t) {
  if (t.code == kE4m3Code) return "float8_e4m3fn";
  if (t.code == kE5m2Code) return "float8_e5m2";
  std::string_view stem;
  switch (static_cast<dtype_code>(t.code)) {
    case dtype_code::Int:
      stem = "int";
      break;
    case dtype_code::UInt:
      stem = "uint";
      break;
    case dtype_code::Float:
      stem = "float";
      break;
    case dtype_code::Bfloat:
      stem = "bfloat";
      break;
    case dtype_code::Complex:
      stem = "complex";
      break;
    case dtype_code::Bool:
      return "bool";
    default:
      return fmt::format("DLPack type {} of {} bits", t.code, t.bits);
  }
  return fmt::format("{}{}", stem, t.bits);
}

// "ndarray of dtype >f4"
std::string type_of(nb::handle object) {
  const auto text = [](nb::handle x) { return std::string(nb::str(x).c_str()); };
  const nb::object type_name = object.type().attr("__name__");
  std::string out = text(type_name);
  if (nb::hasattr(object, "dtype")) {
    const nb::object dtype = object.attr("dtype");
    out += " of dtype " + text(dtype);
  }
  return out;
}

std::optional<DType> number_type(nb::dlpack::dtype t, bool codes) {
  if (is(t, dtype_code::Float, 32)) return DType::f32;
  if (is(t, dtype_code::Bfloat, 16) || is(t, dtype_code::UInt, 16)) return DType::bf16;
  if (codes && (is_e4m3(t) || is(t, dtype_code::UInt, 8))) return DType::e4m3;
  return std::nullopt;
}

// Calls visit(place, element number) for every element in row-major order.
template <class Visit>
void for_each_element(const Array& a, Visit visit) {
  std::int64_t count = 1;
  for (std::size_t d = 0; d < a.ndim(); ++d) count *= a.shape(d);
  std::vector<std::int64_t> place(a.ndim(), 0);
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < a.ndim(); ++d) at += place[d] * a.stride(d);
    visit(place, at);
    for (std::size_t d = a.ndim(); d-- > 0;) {
      if (++place[d] < a.shape(d)) break;
      place[d] = 0;
    }
  }
}

template <class T>
T load(const Array& a, std::int64_t element) {
  T x;
  std::memcpy(&x, a.data() + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return x;
}

}  // namespace

Array::Array(std::string argument, nb::handle object, bool writable, int place)
    : argument_(std::move(argument)) {
  nb::ndarray<> to_write;
  if (writable && nb::try_cast(object, to_write, false)) {
    array_ = nb::ndarray<nb::ro>(to_write);
  } else if (!nb::try_cast(object, array_, false)) {
    raise_type_error({ErrorCode::invalid_argument, argument_,
                      "an array of numbers with DLPack or the buffer protocol", type_of(object),
                      ""});
  } else if (writable) {
    refuse("an array to write to", "a read-only one");
  }
  const int device = array_.device_type();
  if (place != kHost) {
    if (device != nb::device::cuda::value || array_.device_id() != place) {
      refuse(fmt::format("an array on cuda:{}", place),
             fmt::format("one of DLPack device type {}, device {}", device, array_.device_id()));
    }
  } else if (device != nb::device::cpu::value && device != nb::device::cuda_host::value) {
    refuse("an array in host memory", fmt::format("one of DLPack device type {}", device));
  }
}

std::byte* Array::data() const {
  // The writable ones were imported as such.
  return static_cast<std::byte*>(const_cast<void*>(array_.data()));
}

std::string Array::describe() const {
  std::string dims;
  for (std::size_t d = 0; d < ndim(); ++d)
    dims += fmt::format("{}{}", d == 0 ? "" : ", ", shape(d));
  return fmt::format("a {} array of shape ({}{})", dtype_name(dtype()), dims,
                     ndim() == 1 ? "," : "");
}

void Array::refuse(std::string wanted, std::string offered, std::string hint) const {
  raise({ErrorCode::invalid_argument, argument_, std::move(wanted), std::move(offered),
         std::move(hint)});
}

void Array::need_rank(std::size_t rank, const char* shape) const {
  if (ndim() != rank) refuse(fmt::format("the shape {}", shape), describe());
}

void Array::need_dense(std::size_t first) const {
  // The strides of an empty array mean nothing.
  for (std::size_t d = 0; d < ndim(); ++d) {
    if (shape(d) == 0) return;
  }
  std::int64_t step = 1;
  for (std::size_t d = ndim(); d-- > first;) {
    if (shape(d) > 1 && stride(d) != step) {
      refuse(fmt::format("a stride of {} elements on axis {}", step, d),
             fmt::format("{}", stride(d)), "make it contiguous within a row");
    }
    step *= shape(d);
  }
}

bool Array::overlaps(const Array& other) const {
  const auto extent = [](const Array& a) {
    std::int64_t low = 0;
    std::int64_t high = 1;
    const std::int64_t bytes = (a.dtype().bits + 7) / 8;
    for (std::size_t d = 0; d < a.ndim(); ++d) {
      if (a.shape(d) == 0) return std::pair{a.data(), a.data()};
      const std::int64_t reach = (a.shape(d) - 1) * a.stride(d);
      (reach < 0 ? low : high) += reach;
    }
    return std::pair{a.data() + low * bytes, a.data() + high * bytes};
  };
  const auto [a, a_end] = extent(*this);
  const auto [b, b_end] = extent(other);
  return a < b_end && b < a_end;
}

MutableRowsView mutable_rows_view(const Array& array) {
  const RowsView view = rows_view(array);
  return {array.data(), view.dtype, view.rows, view.cols, view.row_stride};
}

RowsView rows_view(const Array& array, bool codes) {
  const std::optional<DType> dtype = number_type(array.dtype(), codes);
  if (!dtype) {
    array.refuse(codes ? "float32, bfloat16, uint16 (bits of bfloat16), float8_e4m3fn or uint8 "
                         "(its codes)"
                       : "float32, bfloat16 or uint16 (bits of bfloat16)",
                 dtype_name(array.dtype()));
  }
  array.need_dense(1);
  RowsView view;
  view.data = array.data();
  view.dtype = *dtype;
  view.rows = array.shape(0);
  view.cols = 1;
  for (std::size_t d = 1; d < array.ndim(); ++d) view.cols *= array.shape(d);
  // The stride of an axis with one element means nothing, and exporters put anything there.
  view.row_stride = view.rows > 1 ? array.stride(0) : view.cols;
  return view;
}

PoolView pool_view(const Array& array, const CacheLayout& layout, std::int32_t page_size) {
  if (auto ok = check_page_size(page_size); !ok) raise(ok.error());
  if (!is_byte(array.dtype())) {
    array.refuse("uint8, float8_e4m3fn or float8_e5m2, the bytes of pages",
                 dtype_name(array.dtype()));
  }
  const std::int64_t least = layout.page_stride(page_size);
  const std::string page =
      fmt::format("{} bytes, a page of {} tokens of {}", least, page_size, layout.name());
  if (array.ndim() == 1) {
    array.need_dense(0);
    if (array.shape(0) % least != 0) {
      array.refuse("a multiple of " + page, fmt::format("{} bytes", array.shape(0)));
    }
    return {array.data(), layout, page_size, array.shape(0) / least};
  }
  if (array.ndim() != 2) {
    array.refuse("the shape [bytes] or [pages, stride in bytes]", array.describe());
  }
  array.need_dense(1);
  const std::int64_t pages = array.shape(0);
  const std::int64_t stride = pages > 1 ? array.stride(0) : std::max(least, array.shape(1));
  if (pages > 0 && (array.shape(1) < least || stride < least)) {
    array.refuse("rows of at least " + page,
                 fmt::format("rows of {} bytes with a stride of {}", array.shape(1), stride));
  }
  return {array.data(), layout, page_size, pages, stride};
}

std::vector<std::int32_t> int32_list(const Array& array, std::size_t rank, const char* shape) {
  const bool narrow = is(array.dtype(), dtype_code::Int, 32);
  if (!narrow && !is(array.dtype(), dtype_code::Int, 64)) {
    array.refuse("int32 or int64", dtype_name(array.dtype()));
  }
  array.need_rank(rank, shape);
  std::vector<std::int32_t> out;
  for_each_element(array, [&](const std::vector<std::int64_t>& place, std::int64_t at) {
    const std::int64_t x = narrow ? load<std::int32_t>(array, at) : load<std::int64_t>(array, at);
    if (x < std::numeric_limits<std::int32_t>::min() ||
        x > std::numeric_limits<std::int32_t>::max()) {
      raise({ErrorCode::out_of_range,
             fmt::format("{}[{}]", array.argument(), fmt::join(place, ", ")),
             "a number that int32 holds", fmt::format("{}", x), ""});
    }
    out.push_back(static_cast<std::int32_t>(x));
  });
  return out;
}

std::vector<Slot> slot_list(const Array& array) {
  std::vector<Slot> slots;
  for (const std::int32_t slot : int32_list(array, 1, "[rows]")) slots.emplace_back(slot);
  return slots;
}

std::vector<float> float_list(const Array& array, std::size_t rank, const char* shape) {
  if (!is(array.dtype(), dtype_code::Float, 32)) {
    array.refuse("float32", dtype_name(array.dtype()));
  }
  array.need_rank(rank, shape);
  std::vector<float> out;
  for_each_element(array, [&](const std::vector<std::int64_t>&, std::int64_t at) {
    out.push_back(load<float>(array, at));
  });
  return out;
}

namespace {

template <class T>
std::span<const T> dense_span(const Array& array, dtype_code code, std::size_t rank,
                              const char* shape) {
  if (!is(array.dtype(), code, 32)) {
    array.refuse(code == dtype_code::Int ? "int32 on a GPU" : "float32 on a GPU",
                 dtype_name(array.dtype()));
  }
  array.need_rank(rank, shape);
  array.need_dense(0);
  std::size_t count = 1;
  for (std::size_t d = 0; d < rank; ++d) count *= static_cast<std::size_t>(array.shape(d));
  if (count > 0 && array.data() == nullptr) array.refuse("an address", "null");
  if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
    array.refuse(fmt::format("an address that is a multiple of {}", alignof(T)),
                 fmt::format("{}", static_cast<const void*>(array.data())));
  }
  return {reinterpret_cast<const T*>(array.data()), count};
}

}  // namespace

std::span<const std::int32_t> int32_span(const Array& array, std::size_t rank, const char* shape) {
  return dense_span<std::int32_t>(array, dtype_code::Int, rank, shape);
}

std::span<const float> float_span(const Array& array, std::size_t rank, const char* shape) {
  return dense_span<float>(array, dtype_code::Float, rank, shape);
}

}  // namespace lathe::python
