// A thread generates four elements, which share a hash and are stored as one word.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/random/fill_random.h"
#include "kernels/random_weights.h"

namespace lathe::cuda {

inline constexpr int kFillThreads = 256;

// The bits of the element generated from `bits`, right-aligned.
template <DType kDType>
__device__ inline std::uint32_t random_element(std::uint64_t bits, float reach) {
  if constexpr (kDType == DType::f32) {
    return float_to_bits(random_value(bits, reach));
  } else if constexpr (kDType == DType::bf16) {
    return to_bf16(random_value(bits, reach)).bits;
  } else if constexpr (kDType == DType::e4m3) {
    return random_e4m3(bits).bits;
  } else if constexpr (kDType == DType::u4) {
    return random_u4(bits);
  } else {
    return random_e2m1(bits).bits;
  }
}

template <DType kDType>
static __global__ void __launch_bounds__(kFillThreads)
    fill_random_kernel(const __grid_constant__ FillRandomParams p) {
  constexpr int kBits = kDType == DType::f32    ? 32
                        : kDType == DType::bf16 ? 16
                        : kDType == DType::e4m3 ? 8
                                                : 4;
  const std::int64_t i = 4 * (std::int64_t{blockIdx.x} * kFillThreads + threadIdx.x);
  if (i >= p.count) return;
  const std::int64_t skipped = p.stride == p.cols ? 0 : i / p.cols * (p.stride - p.cols);
  std::uint64_t bits = random_weight_bits(p.seed, p.first + i + skipped);
  std::uint32_t words[kBits == 32 ? 4 : kBits == 16 ? 2 : 1] = {};
  LATHE_UNROLL
  for (int k = 0; k < 4; ++k, bits >>= 16) {
    words[k * kBits / 32] |= random_element<kDType>(bits, p.reach) << (k * kBits % 32);
  }
  std::byte* to = p.to + i * kBits / 8;
  // Matrices of a stack are contiguous, so some start inside a word.
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % (kBits / 2) == 0;
  if (aligned && i + 4 <= p.count) {
    if constexpr (kBits == 32) {
      *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
    } else if constexpr (kBits == 16) {
      *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    } else if constexpr (kBits == 8) {
      *reinterpret_cast<std::uint32_t*>(to) = words[0];
    } else {
      *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(words[0]);
    }
    return;
  }
  const std::int64_t left = p.count - i;
  const std::int64_t bytes = (left < 4 ? left : 4) * kBits / 8;
  LATHE_UNROLL
  for (int b = 0; b < kBits / 2; ++b) {
    if (b < bytes) to[b] = static_cast<std::byte>(words[b / 4] >> (8 * (b % 4)) & 0xff);
  }
}

}  // namespace lathe::cuda
