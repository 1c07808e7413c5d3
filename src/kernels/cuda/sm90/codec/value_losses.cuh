// Counts values that saturate or become zero when stored as e4m3 with one scale.
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// A value over its scale saturates above kSaturates, half way from 448 to the 480 that e4m3 lacks.
// It becomes zero up to kFlushes, half of the smallest e4m3.
inline constexpr float kSaturates = 464.0f;
inline constexpr float kFlushes = 0x1p-10f;

/// A thread's share of EncodeParams::counts.
struct ValueLosses {
  std::uint32_t stored = 0, saturated = 0, flushed = 0;

  template <int kCount>
  __device__ __forceinline__ void see(const float (&x)[kCount], float inverse) {
    stored += kCount;
    LATHE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float scaled = fabsf(x[i]) * inverse;
      saturated += scaled > kSaturates ? 1 : 0;
      flushed += x[i] != 0 && scaled <= kFlushes ? 1 : 0;
    }
  }
  // All threads of the warp call it.
  __device__ __forceinline__ void add_to(unsigned long long* counts /* [3] */) const {
    const std::uint32_t all[] = {warp_sum(stored), warp_sum(saturated), warp_sum(flushed)};
    LATHE_UNROLL
    for (int i = 0; i < 3; ++i) {
      if (lane_of_warp() == 0 && all[i] != 0) {
        atomicAdd(counts + i, static_cast<unsigned long long>(all[i]));
      }
    }
  }
};

}  // namespace lathe::cuda
