// Tensor: a view of numbers in the caller's memory, with their shape.
#pragma once

#include <lathe/lathe.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

namespace lathe {
inline namespace api {

struct DType {
  std::uint8_t code;
  std::uint8_t bits;
};
inline constexpr DType kInt32{LATHE_INT, 32}, kInt64{LATHE_INT, 64}, kFloat32{LATHE_FLOAT, 32},
    kFloat16{LATHE_FLOAT, 16}, kBfloat16{LATHE_BFLOAT, 16}, kUint8{LATHE_UINT, 8},
    kE4m3{LATHE_FLOAT8_E4M3FN, 8};

/// Owns its shape, not its numbers; copies no numbers. An empty Tensor counts as NULL.
class Tensor {
 public:
  Tensor() = default;
  /// strides: in elements, one per axis; none: dense. At most four axes.
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> strides = {})
      : data_(const_cast<void*>(data)),
        dtype_(dtype),
        axes_(shape.size()),
        strided_(strides.size() > 0) {
    if (axes_ < 1 || axes_ > shape_.size() || (strided_ && strides.size() != axes_)) {
      throw std::invalid_argument("a Tensor has 1 to 4 axes, and as many strides or none");
    }
    std::size_t d = 0;
    for (const std::int64_t n : shape) shape_[d++] = n;
    d = 0;
    for (const std::int64_t n : strides) strides_[d++] = n;
  }

  /// The same tensor, with data that is an address on that GPU.
  Tensor on_gpu(std::int32_t ordinal) const {
    Tensor there = *this;
    there.device_type_ = 2;  // kDLCUDA
    there.device_id_ = ordinal;
    return there;
  }

  bool empty() const { return axes_ == 0; }
  std::int64_t shape(std::size_t axis) const { return shape_[axis]; }
  /// The C struct, for one call: it points into this Tensor.
  lathe_tensor view() const {
    return {data_,
            device_type_,
            device_id_,
            static_cast<std::int32_t>(axes_),
            dtype_.code,
            dtype_.bits,
            1,
            shape_.data(),
            strided_ ? strides_.data() : nullptr,
            0};
  }

 private:
  void* data_ = nullptr;
  std::int32_t device_type_ = 1, device_id_ = 0;  // kDLCPU
  DType dtype_ = kFloat32;
  std::size_t axes_ = 0;
  bool strided_ = false;
  // Mutable because lathe_tensor has pointers without const; the library never writes through them.
  mutable std::array<std::int64_t, 4> shape_{}, strides_{};
};

}  // namespace api
}  // namespace lathe
