// The formats of a cached row: how many fp8 and bf16 tiles it has, and where its scales are.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"
#include "layout/layout.h"

namespace lathe::cuda {

// A row is kFp8 tiles of 64 e4m3 elements, then kWide tiles of 64 bf16 elements. kScaleTiles
// consecutive fp8 tiles share a scale. In shared memory, rows of fp8 caches are kPitch bytes apart
// (fp8_operands.cuh says why).

struct Fp8BlockFormat {  // mla_fp8_block
  static constexpr int kFp8 = 8, kWide = 1;
  static constexpr int kRowBytes = 656, kWideAt = 528, kPitch = 656;
  static constexpr int kScales = 4, kScaleTiles = 2, kScalesAt = 512;
  /// row: address in shared memory.
  static __device__ float scale(std::uint32_t row, int which) {
    return load_float(row + static_cast<std::uint32_t>(kScalesAt + which * 4));
  }
  static constexpr bool kScalesApart = false;
};

struct V4Fp8Format {  // v4_fp8
  static constexpr int kFp8 = 7, kWide = 1;
  static constexpr int kRowBytes = 576, kWideAt = 448, kPitch = 592;
  static constexpr int kScales = 7, kScaleTiles = 1;
  /// row: address in shared memory. The row's ue8m0 scale codes follow it there.
  static __device__ float scale(std::uint32_t row, int which) {
    return bits_to_float(load_shared_u8(row + static_cast<std::uint32_t>(kRowBytes + which)) << 23);
  }
  static constexpr bool kScalesApart = true;
};

struct Fp8Format {  // mla_fp8: one scale for the whole cache, applied to scores and outputs
  static constexpr int kFp8 = 9, kWide = 0;
  static constexpr int kRowBytes = 576, kWideAt = 0, kPitch = 592;
  static constexpr int kScales = 0, kScaleTiles = 0;
  static constexpr bool kScalesApart = false;
};

struct Bf16Format {  // mla_bf16
  static constexpr int kFp8 = 0, kWide = 9, kRowBytes = 1152;
  static constexpr bool kScalesApart = false;
};

/// bf16 rows of 512 elements: the key is the value.
struct Bf16RowFormat512 {
  static constexpr int kFp8 = 0, kWide = 8, kRowBytes = 1024;
  static constexpr bool kScalesApart = false;
};

/// Whether a format's numbers are those that `layout` computes (on the host).
template <class Format>
constexpr bool is_format_of(const CacheLayout& layout) {
  int fp8 = 0, wide = 0, wide_at = 0, scales = 0, scales_plane = 0;
  for (int i = 0; i < layout.part_count(); ++i) {
    const Part& part = layout.part(i);
    if (part.dtype == DType::e4m3) fp8 += part.elems;
    if (part.dtype == DType::bf16) {
      if (wide == 0) wide_at = part.offset;
      wide += part.elems;
    }
    if (part.role != PartRole::scale) continue;
    scales = part.elems;
    scales_plane = part.plane;
    if constexpr (requires { Format::kScalesAt; }) {
      if (Format::kScalesAt != part.offset) return false;
    }
  }
  if constexpr (Format::kFp8 > 0) {
    if (Format::kWideAt != wide_at || Format::kScales != scales ||
        Format::kScaleTiles * 64 != layout.scale_tile() ||
        Format::kScalesApart != (scales_plane == 1)) {
      return false;
    }
  }
  return Format::kFp8 * 64 == fp8 && Format::kWide * 64 == wide &&
         Format::kRowBytes == layout.plane_bytes(0);
}
static_assert(is_format_of<Fp8BlockFormat>(CacheLayout(LayoutKind::mla_fp8_block)));
static_assert(is_format_of<V4Fp8Format>(CacheLayout(LayoutKind::v4_fp8)));
static_assert(V4Fp8Format::kRowBytes + V4Fp8Format::kScales <= V4Fp8Format::kPitch);
static_assert(is_format_of<Fp8Format>(CacheLayout(LayoutKind::mla_fp8)));
static_assert(is_format_of<Bf16Format>(CacheLayout(LayoutKind::mla_bf16)));
static_assert(is_format_of<Bf16RowFormat512>(CacheLayout(LayoutKind::mla_bf16,
                                                         {.nope = 448, .rope = 64})));

template <class Format>
inline constexpr int kDimTiles = Format::kFp8 + Format::kWide;

}  // namespace lathe::cuda
