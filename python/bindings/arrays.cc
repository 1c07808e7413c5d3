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

}  // namespace

Array::Array(std::string argument, nb::handle object, bool writable, int place) {
  nb::ndarray<> to_write;
  if (writable && nb::try_cast(object, to_write, false)) {
    array_ = nb::ndarray<nb::ro>(to_write);
  } else if (!nb::try_cast(object, array_, false)) {
    raise_type_error({ErrorCode::invalid_argument, argument,
                      "an array of numbers with DLPack or the buffer protocol", type_of(object),
                      ""});
  } else if (writable) {
    raise({ErrorCode::invalid_argument, argument, "an array to write to", "a read-only one", ""});
  }
  const nb::dlpack::dtype type = array_.dtype();
  // The writable ones were imported as such.
  ref_ = {std::move(argument),
          static_cast<std::byte*>(const_cast<void*>(array_.data())),
          {type.code, type.bits, type.lanes},
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
