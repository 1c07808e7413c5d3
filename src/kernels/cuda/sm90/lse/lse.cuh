// A thread per number.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/lse/lse.h"

namespace lathe::cuda {

inline constexpr int kLseThreads = 256;

static __global__ void __launch_bounds__(kLseThreads)
    convert_lse_kernel(const __grid_constant__ ConvertLse p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kLseThreads + threadIdx.x;
  if (i >= p.rows * p.heads) return;
  const std::int64_t row = i / p.heads;
  float& lse = p.lse[row * p.lse_stride + (i - row * p.heads)];
  const std::uint32_t bits = float_to_bits(lse);
  constexpr std::uint32_t kMinusInf = 0xff800000u, kPlusInf = 0x7f800000u;
  if (bits == kMinusInf) {
    if (p.empty_plus_inf) lse = bits_to_float(kPlusInf);
  } else if (p.base_2) {
    lse = static_cast<float>(double{lse} * 1.4426950408889634);
  }
}

}  // namespace lathe::cuda
