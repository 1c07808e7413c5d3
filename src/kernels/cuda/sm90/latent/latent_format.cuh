// Cached rows on their way into a tile of bf16 in shared memory: what a thread loads of a row, and
// what it makes of it.

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

/// 2^120 times a scale below 2^8 with this ue8m0 code, twice, as bf16.
__device__ inline std::uint32_t widen_scale_ue8m0(std::uint32_t code) {
  const std::uint32_t exponent = code + 120 < 254 ? code + 120 : 254;
  return exponent << 7 | exponent << 23;
}

// A row has kFp8 tiles of 64 fp8 and then kWide tiles of 64 bf16. Scales are loaded a pair of tiles early
// by one lane and packed into two words for those that need them.

struct NoScales {
  __device__ void load(const std::byte*, const std::byte*) {}
  /// Where they must have come: the compiler would wait for them where they are loaded.
  __device__ void arrive() {}
  __device__ uint2 pack() const { return {0, 0}; }
};

struct Fp8BlockFormat {  // mla_fp8_block
  static constexpr int kFp8 = 8, kWide = 1;
  static constexpr int kRowBytes = 656, kWideAt = 528;
  struct Scales {
    float4 four;
    __device__ void load(const std::byte* row, const std::byte*) {
      four = __ldg(reinterpret_cast<const float4*>(row + 512));
    }
    __device__ void arrive() {
      asm volatile("" : "+f"(four.x), "+f"(four.y), "+f"(four.z), "+f"(four.w));
    }
    /// Four bf16.
    __device__ uint2 pack() const {
      return {pack_bf16(four.x * 0x1p120f, four.y * 0x1p120f),
              pack_bf16(four.z * 0x1p120f, four.w * 0x1p120f)};
    }
  };
  template <int kTile>
  static __device__ std::uint32_t scale_of(uint2 packed) {
    std::uint32_t twice;
    asm("prmt.b32 %0, %1, 0, %2;"
        : "=r"(twice)
        : "r"(kTile < 4 ? packed.x : packed.y), "n"(kTile % 4 < 2 ? 0x1010 : 0x3232));
    return twice;
  }
};

struct V4Fp8Format {  // v4_fp8
  static constexpr int kFp8 = 7, kWide = 1;
  static constexpr int kRowBytes = 576, kWideAt = 448;
  struct Scales {
    uint2 codes;
    __device__ void load(const std::byte*, const std::byte* scales) {
      codes = __ldg(reinterpret_cast<const uint2*>(scales));
    }
    __device__ void arrive() { asm volatile("" : "+r"(codes.x), "+r"(codes.y)); }
    /// Eight ue8m0.
    __device__ uint2 pack() const { return codes; }
  };
  template <int kTile>
  static __device__ std::uint32_t scale_of(uint2 packed) {
    return widen_scale_ue8m0((kTile < 4 ? packed.x : packed.y) >> 8 * (kTile % 4) & 0xff);
  }
};

struct Fp8Format {  // mla_fp8; its scale is applied to scores and outputs
  static constexpr int kFp8 = 9, kWide = 0;
  static constexpr int kRowBytes = 576, kWideAt = 0;
  using Scales = NoScales;
  template <int kTile>
  static __device__ std::uint32_t scale_of(uint2) {
    return 0x7b807b80u;  // 2^120
  }
};

struct Bf16Format {  // mla_bf16
  static constexpr int kFp8 = 0, kWide = 9;
  static constexpr int kRowBytes = 1152, kWideAt = 0;
  using Scales = NoScales;
};

/// bf16 rows of V4's 512.
struct Bf16RowFormat512 {
  static constexpr int kFp8 = 0, kWide = 8;
  static constexpr int kRowBytes = 1024, kWideAt = 0;
  using Scales = NoScales;
};

template <class Format>
inline constexpr int kDimTiles = Format::kFp8 + Format::kWide;

}  // namespace lathe::cuda
