// Arithmetic on pairs of bf16 in a word.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

#ifdef __CUDACC__

/// a b + c of two bf16 each, rounded once, to nearest even; subnormal numbers too.
__device__ inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
/// The low half of v, or its high half, in both halves. As moves, because ptxas can make them part
/// of an instruction for pairs of bf16 or f16, unlike permutations of bytes.
__device__ inline std::uint32_t low_half_twice(std::uint32_t v) {
  std::uint32_t out;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
      : "=r"(out)
      : "r"(v));
  return out;
}
__device__ inline std::uint32_t high_half_twice(std::uint32_t v) {
  std::uint32_t out;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
      : "=r"(out)
      : "r"(v));
  return out;
}

#else

inline std::uint32_t low_half_twice(std::uint32_t v) { return v << 16 | (v & 0xffffu); }
inline std::uint32_t high_half_twice(std::uint32_t v) { return v >> 16 | (v & 0xffff0000u); }
inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto one = [](std::uint32_t x, std::uint32_t y, std::uint32_t z) {
    const auto value = [](std::uint32_t half) { return double{bits_to_float(half << 16)}; };
    const double exact = value(x) * value(y) + value(z);
    float rounded = static_cast<float>(exact);
    // Rounded to odd, so that rounding it again gives the exact sum's bf16.
    if (std::isfinite(rounded) && double{rounded} != exact) {
      if (std::abs(double{rounded}) > std::abs(exact)) rounded = std::nextafter(rounded, 0.f);
      rounded = bits_to_float(float_to_bits(rounded) | 1);
    }
    return std::uint32_t{to_bf16(rounded).bits};
  };
  return one(a & 0xffffu, b & 0xffffu, c & 0xffffu) | one(a >> 16, b >> 16, c >> 16) << 16;
}

#endif

}  // namespace lathe::cuda
