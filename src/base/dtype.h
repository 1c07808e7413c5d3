// Element types of stored and computed values.
#pragma once

#include <cstdint>

#include "base/enum.h"

namespace lathe {

#define LATHE_DTYPES(X) X(f64) X(f32) X(bf16) X(f16) X(e4m3) X(e5m2) X(e2m1) X(ue8m0) X(u8) X(u4)
LATHE_ENUM(DType, LATHE_DTYPES)

/// Bits of one element; e2m1 and u4 pack two elements in a byte.
constexpr int bits_of(DType t) {
  switch (t) {
    case DType::f64:
      return 64;
    case DType::f32:
      return 32;
    case DType::bf16:
    case DType::f16:
      return 16;
    case DType::e2m1:
    case DType::u4:
      return 4;
    case DType::e4m3:
    case DType::e5m2:
    case DType::ue8m0:
    case DType::u8:
      return 8;
  }
  return 0;
}

/// Bytes of n packed elements (n even for e2m1 and u4).
constexpr std::int64_t bytes_of(DType t, std::int64_t n) { return n * bits_of(t) / 8; }

}  // namespace lathe
