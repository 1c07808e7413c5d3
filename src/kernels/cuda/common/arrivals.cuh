// Blocks of a kernel that hand data to another block of it, through memory and a count.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

/// Adds 1 to a count. What the thread wrote before, and what others of its block wrote before a
/// barrier that it has passed, is visible to a thread that has waited for the count.
__device__ inline void arrive_release(std::uint32_t* count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
/// Waits until `count` is `wanted`, and sets it to 0 for the next launch. Without NDEBUG a wait of
/// some ten seconds ends the kernel with an error.
__device__ inline void wait_arrivals(std::uint32_t* count, std::uint32_t wanted) {
  std::uint32_t v = 0;
#ifndef NDEBUG
  std::uint32_t rounds = 0;
#endif
  while (true) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(count) : "memory");
    if (v == wanted) break;
#ifndef NDEBUG
    if (++rounds == 1u << 24) __trap();
#endif
  }
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(count) : "memory");
}
/// Of data that another block wrote, which the first-level cache may have an older state of.
__device__ inline float4 load_sent(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline std::uint32_t load_sent(const std::uint32_t* from) {
  std::uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

}  // namespace lathe::cuda

#else

// The emulator runs blocks one after the other, so what a block may wait for has arrived.
namespace lathe::cuda {

inline void arrive_release(std::uint32_t* count) { ++*count; }
inline void wait_arrivals(std::uint32_t* count, std::uint32_t wanted) {
  LATHE_CHECK(*count == wanted, "a block waits for one that comes after it");
  *count = 0;
}
inline float4 load_sent(const float4* from) { return *from; }
inline std::uint32_t load_sent(const std::uint32_t* from) { return *from; }

}  // namespace lathe::cuda

#endif
