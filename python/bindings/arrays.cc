#include "arrays.h"

#include <fmt/format.h>

#include <string_view>

namespace lathe::python {
namespace {

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

// Types that numpy cannot export (ml_dtypes) or torch exports as bare bits, by the name of the
// array's dtype.
struct NamedType {
  std::string_view name;
  const char* bits;  // numpy's type of the same width
  ArrayType type;
};
constexpr NamedType kNamedTypes[] = {
    {"bfloat16", "uint16", {static_cast<std::uint8_t>(ArrayCode::bfloat), 16, 1}},
    {"float8_e4m3fn", "uint8", {static_cast<std::uint8_t>(ArrayCode::e4m3fn), 8, 1}},
    {"float8_e5m2", "uint8", {static_cast<std::uint8_t>(ArrayCode::e5m2), 8, 1}},
};

const NamedType* named_type_of(nb::handle object) {
  if (!nb::hasattr(object, "dtype")) return nullptr;
  const nb::object dtype = object.attr("dtype");
  std::string name = nb::str(dtype).c_str();
  if (name.starts_with("torch.")) name.erase(0, 6);
  for (const NamedType& t : kNamedTypes) {
    if (name == t.name) return &t;
  }
  return nullptr;
}

// The array's bits, sharing its memory, if it is numpy's and of a type that numpy cannot export.
nb::object exportable(nb::handle object, const NamedType* named) {
  const nb::object type_name = object.type().attr("__name__");
  const bool numpy = std::string_view(nb::str(type_name).c_str()) == "ndarray";
  if (named == nullptr || !numpy) return nb::borrow(object);
  return object.attr("view")(named->bits);
}

}  // namespace

Array::Array(std::string argument, nb::handle given, bool writable, int place) {
  const NamedType* named = named_type_of(given);
  const nb::object object = exportable(given, named);
  nb::ndarray<> to_write;
  if (writable && nb::try_cast(object, to_write, false)) {
    array_ = nb::ndarray<nb::ro>(to_write);
  } else if (!nb::try_cast(object, array_, false)) {
    raise_type_error({ErrorCode::invalid_argument, argument,
                      "an array of numbers with DLPack or the buffer protocol", type_of(given),
                      ""});
  } else if (writable) {
    raise({ErrorCode::invalid_argument, argument, "an array to write to", "a read-only one", ""});
  }
  const nb::dlpack::dtype type = array_.dtype();
  // The writable ones were imported as such.
  ref_ = {std::move(argument),
          static_cast<std::byte*>(const_cast<void*>(array_.data())),
          named != nullptr ? named->type : ArrayType{type.code, type.bits, type.lanes},
          {array_.shape_ptr(), array_.ndim()},
          {array_.stride_ptr(), array_.ndim()}};
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

}  // namespace lathe::python
