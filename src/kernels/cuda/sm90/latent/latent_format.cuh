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
  low = mul_bf16x2(extend_low_bytes(bytes) << 4 & 0x87f087f0u, scale);
  high = mul_bf16x2(extend_high_bytes(bytes) << 4 & 0x87f087f0u, scale);
}

/// 2^120 times a scale below 2^8 with this ue8m0 code, twice, as bf16.
__device__ inline std::uint32_t widen_scale_ue8m0(std::uint32_t code) {
  const std::uint32_t exponent = code + 120 < 254 ? code + 120 : 254;
  return exponent << 7 | exponent << 23;
}

// A row has kFp8 tiles of 64 fp8 and then kWide tiles of 64 bf16. The first kAhead are loaded a pass
// ahead (latent_fill.cuh). Of its scales each of the four threads
// that share it loads a part; spread() gives all of them two words, one for tiles 0 to 3 and one for
// tiles 4 to 7.

struct Fp8BlockFormat {  // mla_fp8_block
  static constexpr int kFp8 = 8, kWide = 1, kAhead = 5;
  static constexpr int kRowBytes = 656, kWideAt = 528, kPitch = 656;
  static constexpr int kScales = 4, kScaleTiles = 2;
  /// row: in shared memory.
  static __device__ float scale(std::uint32_t row, int which) {
    return load_float(row + static_cast<std::uint32_t>(512 + which * 4));
  }
  static constexpr bool kScaled = true, kScalesApart = false;
  static __device__ std::uint32_t load_scale(const std::byte* row, std::uint32_t, int part) {
    return load_constant(reinterpret_cast<const std::uint32_t*>(row + 512 + part * 4));
  }
  /// Two bf16 in a word.
  static __device__ uint2 spread(std::uint32_t scale, int part) {
    const float f = bits_to_float(scale) * 0x1p120f;
    const std::uint32_t own = pack_bf16(f, f);
    const std::uint32_t beside = shuffle_xor(own, 1);
    const std::uint32_t two = (part & 1) != 0 ? (beside & 0xffffu) | (own & 0xffff0000u)
                                              : (own & 0xffffu) | (beside & 0xffff0000u);
    const std::uint32_t others = shuffle_xor(two, 2);
    return (part & 2) != 0 ? uint2{others, two} : uint2{two, others};
  }
  template <int kTile>
  static __device__ std::uint32_t scale_of(std::uint32_t packed) {
    return twice_half<(kTile % 4) / 2>(packed);
  }
};

struct V4Fp8Format {  // v4_fp8
  static constexpr int kFp8 = 7, kWide = 1, kAhead = 6;
  static constexpr int kRowBytes = 576, kWideAt = 448, kPitch = 592;
  static constexpr int kScales = 7, kScaleTiles = 1;
  /// The codes stand behind the row.
  static __device__ float scale(std::uint32_t row, int which) {
    return bits_to_float(load_shared_u8(row + static_cast<std::uint32_t>(kRowBytes + which)) << 23);
  }
  static constexpr bool kScaled = true, kScalesApart = true;
  static __device__ std::uint32_t load_scale(const std::byte*, std::uint32_t address, int part) {
    const auto* codes = reinterpret_cast<const std::uint32_t*>(load_shared_u64(address));
    return load_constant(codes + (part & 1));
  }
  /// Four ue8m0 in a word.
  static __device__ uint2 spread(std::uint32_t codes, int part) {
    const std::uint32_t others = shuffle_xor(codes, 1);
    return (part & 1) != 0 ? uint2{others, codes} : uint2{codes, others};
  }
  template <int kTile>
  static __device__ std::uint32_t scale_of(std::uint32_t packed) {
    return widen_scale_ue8m0(packed >> 8 * (kTile % 4) & 0xff);
  }
};

struct Fp8Format {  // mla_fp8; its scale is applied to scores and outputs
  static constexpr int kFp8 = 9, kWide = 0, kAhead = 6;
  static constexpr int kRowBytes = 576, kWideAt = 0, kPitch = 592;
  static constexpr int kScales = 0, kScaleTiles = 0;
  static constexpr bool kScaled = false, kScalesApart = false;
  template <int kTile>
  static __device__ std::uint32_t scale_of(std::uint32_t) {
    return 0x7b807b80u;  // 2^120
  }
};

struct Bf16Format {  // mla_bf16
  static constexpr int kFp8 = 0, kWide = 9, kAhead = 0;
  static constexpr int kRowBytes = 1152, kWideAt = 0;
  static constexpr bool kScaled = false, kScalesApart = false;
};

/// bf16 rows of V4's 512.
struct Bf16RowFormat512 {
  static constexpr int kFp8 = 0, kWide = 8, kAhead = 0;
  static constexpr int kRowBytes = 1024, kWideAt = 0;
  static constexpr bool kScaled = false, kScalesApart = false;
};

template <class Format>
inline constexpr int kDimTiles = Format::kFp8 + Format::kWide;

}  // namespace lathe::cuda
