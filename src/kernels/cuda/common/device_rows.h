// A RowsView as a kernel parameter, without the fields that the kernel has from other parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/float_formats.h"
#include "base/rows_view.h"

namespace lathe::cuda {

template <class Byte>
struct BasicDeviceRows {
  Byte* data = nullptr;
  std::int64_t stride = 0;  // elements
  DType dtype = DType::f32;
};
using DeviceRows = BasicDeviceRows<const std::byte>;
using MutableDeviceRows = BasicDeviceRows<std::byte>;

inline DeviceRows device_rows(const RowsView& v) { return {v.data, v.row_stride, v.dtype}; }
inline MutableDeviceRows device_rows(const MutableRowsView& v) {
  return {v.data, v.row_stride, v.dtype};
}

inline const float* floats(const RowsView& v) { return reinterpret_cast<const float*>(v.data); }
inline float* floats(const MutableRowsView& v) { return reinterpret_cast<float*>(v.data); }

/// Loads element `at` of an f32 or bf16 array as f32.
LATHE_HD inline float load_element(const std::byte* data, DType dtype, std::int64_t at) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[at];
  return to_f32(reinterpret_cast<const bf16*>(data)[at]);
}
LATHE_HD inline float load_element(const DeviceRows& rows, std::int64_t row, std::int64_t col) {
  return load_element(rows.data, rows.dtype, row * rows.stride + col);
}
/// Stores v as f32, bf16 or e4m3, rounded to nearest even.
LATHE_HD inline void store_element(const MutableDeviceRows& rows, std::int64_t row,
                                   std::int64_t col, float v) {
  const std::int64_t at = row * rows.stride + col;
  if (rows.dtype == DType::f32) {
    reinterpret_cast<float*>(rows.data)[at] = v;
  } else if (rows.dtype == DType::bf16) {
    reinterpret_cast<bf16*>(rows.data)[at] = to_bf16(v);
  } else {
    reinterpret_cast<e4m3*>(rows.data)[at] = to_e4m3(v);
  }
}

}  // namespace lathe::cuda
