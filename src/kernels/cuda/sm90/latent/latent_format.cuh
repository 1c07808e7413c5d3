// Cached rows on their way into a tile of bf16 in shared memory: what a thread loads of a row, and
// what it makes of it.
//
// Four neighbouring threads take a row; step i gives each 16 bytes of fp8 of dimensions 64 i to
// 64 i + 63, so that a row's tile of 64 is 64 bytes read and 128 written.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/latent_unit.cuh"

namespace lathe::cuda {

/// e4m3 is bf16 with an exponent that is 120 too small once its seven low bits are moved up by four:
/// bf16's denormals included, so one multiplication by 2^120 times the scale decodes exactly what
/// bf16 can hold. NaN (0x7f) comes out as 480.
/// bytes: four e4m3; low, high: four bf16 in their order.
__device__ inline void widen_e4m3(std::uint32_t bytes, std::uint32_t scale, std::uint32_t& low,
                                  std::uint32_t& high) {
  // Selector digit 8 + i is byte i's sign, eight times.
  std::uint32_t a, b;
  asm("prmt.b32 %0, %1, 0, 0x9180;" : "=r"(a) : "r"(bytes));
  asm("prmt.b32 %0, %1, 0, 0xb3a2;" : "=r"(b) : "r"(bytes));
  low = mul_bf16x2(a << 4 & 0x87f087f0u, scale);
  high = mul_bf16x2(b << 4 & 0x87f087f0u, scale);
}

/// 2^120 * scale, twice.
__device__ inline std::uint32_t widen_scale(float scale) {
  const float s = scale * 0x1p120f;
  return pack_bf16(s, s);
}
/// The same for a ue8m0 code, below 2^8.
__device__ inline std::uint32_t widen_scale_ue8m0(std::uint32_t code) {
  const std::uint32_t exponent = code + 120 < 254 ? code + 120 : 254;
  return exponent << 7 | exponent << 23;
}

// kFp8 tiles of 64 fp8, then kWide tiles of 64 bf16.
struct Fp8BlockFormat {  // mla_fp8_block
  static constexpr int kFp8 = 8, kWide = 1;
  static constexpr int kRowBytes = 656, kWideAt = 528;
  float4 scale;
  __device__ void load_scales(const std::byte* row, const std::byte*) {
    const uint4 v = load_stream(row + 512);
    scale = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
             __uint_as_float(v.w)};
  }
  template <int kTile>
  __device__ std::uint32_t scale_of() const {
    return widen_scale(kTile / 2 == 0   ? scale.x
                       : kTile / 2 == 1 ? scale.y
                       : kTile / 2 == 2 ? scale.z
                                        : scale.w);
  }
};

struct V4Fp8Format {  // v4_fp8
  static constexpr int kFp8 = 7, kWide = 1;
  static constexpr int kRowBytes = 576, kWideAt = 448;
  uint2 scale;
  __device__ void load_scales(const std::byte*, const std::byte* scales) {
    scale = *reinterpret_cast<const uint2*>(scales);
  }
  template <int kTile>
  __device__ std::uint32_t scale_of() const {
    const std::uint32_t word = kTile < 4 ? scale.x : scale.y;
    return widen_scale_ue8m0(word >> 8 * (kTile % 4) & 0xff);
  }
};

struct Fp8Format {  // mla_fp8; its scale is applied to scores and outputs
  static constexpr int kFp8 = 9, kWide = 0;
  static constexpr int kRowBytes = 576, kWideAt = 0;
  __device__ void load_scales(const std::byte*, const std::byte*) {}
  template <int kTile>
  __device__ std::uint32_t scale_of() const {
    return 0x7b807b80u;  // 2^120
  }
};

struct Bf16Format {  // mla_bf16
  static constexpr int kFp8 = 0, kWide = 9;
  static constexpr int kRowBytes = 1152, kWideAt = 0;
};

/// bf16 rows of V4's 512.
struct Bf16RowFormat512 {
  static constexpr int kFp8 = 0, kWide = 8;
  static constexpr int kRowBytes = 1024, kWideAt = 0;
};

template <class Format>
inline constexpr int kDimTiles = Format::kFp8 + Format::kWide;

}  // namespace lathe::cuda
