#include "kernels/ref/decode_token.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/float_formats.h"

namespace lathe {
namespace {

// memcpy, because parts need not be aligned (656 bytes per token, odd page strides).
template <class T>
T load(const std::byte* bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

double element(DType dtype, const std::byte* bytes, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return load<float>(bytes, index);
    case DType::bf16:
      return to_f32(load<bf16>(bytes, index));
    case DType::e4m3:
      return to_f32(load<e4m3>(bytes, index));
    case DType::e2m1: {
      constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const unsigned pair = load<std::uint8_t>(bytes, index / 2);
      const unsigned code = index % 2 == 0 ? pair & 15u : pair >> 4;
      return (code & 8u) != 0 ? -kMagnitudes[code & 7u] : kMagnitudes[code];
    }
    case DType::ue8m0: {
      const int biased = load<std::uint8_t>(bytes, index);
      return biased == 255 ? std::numeric_limits<double>::quiet_NaN()
                           : std::ldexp(1.0, biased - 127);
    }
    default:
      break;
  }
  LATHE_CHECK(false, "a dtype that no layout stores");
}

}  // namespace

void decode_token(const ConstPoolView& pool, Slot slot, float key_scale, float value_scale,
                  std::span<double> row) {
  const CacheLayout& layout = pool.layout;
  LATHE_CHECK(pool.holds(slot), "slot outside the pool");
  LATHE_CHECK(std::ssize(row) == layout.row_elems(), "row of another size than the layout's");

  const Part* scales = layout.find(PartRole::scale);
  std::int32_t at = 0;  // element of the whole row; it also selects the scale's tile
  for (int i = 0; i < layout.part_count(); ++i) {
    const Part& part = layout.part(i);
    if (part.role == PartRole::scale || part.role == PartRole::pad) continue;
    const std::byte* bytes = pool.at(part, slot);
    for (std::int32_t e = 0; e < part.elems; ++e, ++at) {
      double scale = 1;
      if (layout.scale_policy() == ScalePolicy::per_tensor) {
        scale = part.role == PartRole::value ? value_scale : key_scale;
      } else if (scales != nullptr && part.dtype != DType::bf16) {
        // A bf16 part next to scaled fp8 (the rope of mla_fp8_block and v4_fp8) has no scale.
        scale = element(scales->dtype, pool.at(*scales, slot), at / layout.scale_tile());
      }
      row[static_cast<std::size_t>(at)] = element(part.dtype, bytes, e) * scale;
    }
  }
}

}  // namespace lathe
