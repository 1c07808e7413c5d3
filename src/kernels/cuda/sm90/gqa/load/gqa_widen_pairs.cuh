// Makes operands of bf16 matrix products from e4m3 codes in registers, exactly.
#pragma once

#include "kernels/cuda/common/bf16_pairs.cuh"

namespace lathe::cuda {

/// Bytes kLow and kHigh of `codes`, each in 16 bits of its own with its sign extended.
template <int kLow, int kHigh>
__device__ inline std::uint32_t spread_codes(std::uint32_t codes) {
#ifdef __CUDACC__
  // A nibble of the selector names a byte; with 8 added, its sign bit eight times.
  constexpr std::uint32_t kSelector =
      kLow | (kLow | 8) << 4 | kHigh << 8 | std::uint32_t{kHigh | 8} << 12;
  std::uint32_t out;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(out) : "r"(codes), "n"(kSelector));
  return out;
#else
  const auto one = [&](int byte) {
    const auto code = static_cast<std::int8_t>(codes >> 8 * byte);
    return static_cast<std::uint32_t>(static_cast<std::uint16_t>(code));
  };
  return one(kLow) | one(kHigh) << 16;
#endif
}

/// Codes kLow and kHigh of four as bf16; NaN becomes 480 (has_nan() tells). The bits of a code, as
/// bits of a bf16, are the value times 2^-120, subnormal values included.
template <int kLow, int kHigh>
__device__ inline std::uint32_t widen_pair(std::uint32_t codes) {
  constexpr std::uint32_t kPower = 0x7b807b80u;  // 2^120
  return fma_bf16x2(spread_codes<kLow, kHigh>(codes) << 4 & 0x87f087f0u, kPower, 0);
}

/// Has bit 7 of a byte for each code that is NaN; the rest is arbitrary.
__device__ inline std::uint32_t nan_bits(std::uint32_t codes) {
  return (codes & 0x7f7f7f7fu) + 0x01010101u;
}
__device__ inline bool has_nan(std::uint32_t bits) { return (bits & 0x80808080u) != 0; }

}  // namespace lathe::cuda
