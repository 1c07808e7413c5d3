// Everything that Lathe's device code uses beyond C++: built-in variables, barriers, shuffles,
// atomics and Hopper's conversions. nvcc compiles them to instructions. With an ordinary compiler
// emulator.h implements them, so that tests run kernels without a GPU, each thread a coroutine.
// Kernels are static, because a program may contain both builds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_formats.h"

#ifdef __CUDACC__

#define LATHE_UNROLL _Pragma("unroll")
#define LATHE_ROLLED _Pragma("unroll 1")
#define LATHE_UNROLL_BY(n) _Pragma(LATHE_TEXT(unroll n))
#define LATHE_TEXT(...) #__VA_ARGS__

namespace lathe::cuda {

__device__ inline float shuffle_xor(float v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
__device__ inline int shuffle_xor(int v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
__device__ inline std::uint32_t shuffle_xor(std::uint32_t v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
__device__ inline double shuffle_xor(double v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
__device__ inline long long shuffle_xor(long long v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
__device__ inline unsigned long long shuffle_xor(unsigned long long v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
template <class T>
__device__ inline T shuffle_up(T v, int lanes) {
  return __shfl_up_sync(0xffffffffu, v, static_cast<unsigned>(lanes));
}
/// The value that lane `lane` % 32 passes.
template <class T>
__device__ inline T shuffle(T v, std::uint32_t lane) {
  return __shfl_sync(0xffffffffu, v, static_cast<int>(lane));
}
/// v, which all lanes of the warp pass, in a form that tells the compiler so. It then computes what
/// depends on it once for the warp, in uniform registers, and a branch on it does not divide lanes.
template <class T>
__device__ inline T warp_value(T v) {
  return shuffle(v, 0);
}
__device__ inline bool warp_value(bool v) { return warp_value(v ? 1 : 0) != 0; }
__device__ inline bool warp_any(bool v) { return __any_sync(0xffffffffu, v) != 0; }
/// Bit i: the value that lane i passes.
__device__ inline std::uint32_t warp_ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
/// Bit i: whether lane i passes the same value.
__device__ inline std::uint32_t warp_match(std::int32_t v) {
  return __match_any_sync(0xffffffffu, v);
}
/// The largest of all lanes.
__device__ inline std::uint32_t warp_max(std::uint32_t v) {
  return __reduce_max_sync(0xffffffffu, v);
}
__device__ inline std::uint32_t warp_sum(std::uint32_t v) {
  return __reduce_add_sync(0xffffffffu, v);
}
__device__ inline void sync_warp() { __syncwarp(); }
__device__ inline void sync_block() { __syncthreads(); }

/// In a launch that may begin before the previous one on its stream has ended: waits until that one
/// has ended and its stores are visible. Before this call a kernel must write nothing, and read
/// nothing that the previous launch may write.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Lets the next such launch on the stream begin, once every block has called this.
__device__ inline void let_next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Loads global memory by address. A pointer computed in another lane has lost its memory space,
/// and accesses through it would be generic.
template <class T>
__device__ inline T load_global(unsigned long long address) {
  return *static_cast<const T*>(__cvta_global_to_generic(address));
}
template <class T>
__device__ inline void store_global(unsigned long long address, T v) {
  *static_cast<T*>(__cvta_global_to_generic(address)) = v;
}
/// *to += v, without waiting for the old value: one addition, rounded to nearest. Magnitudes below
/// 2^-126 count as zero.
__device__ inline void add_global(float* to, float v) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "f"(v)
               : "memory");
}

/// Data that the L2 cache keeps longest, or drops first.
enum class Keep { longest, shortest };
template <Keep kKeep>
__device__ __forceinline__ void* kept(unsigned long long address) {
  std::uint64_t policy;
  if constexpr (kKeep == Keep::longest) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
  return __nv_associate_access_property(__cvta_global_to_generic(address), policy);
}
/// load_global() and store_global() with a hint to L2 on how long to keep the data.
template <class T, Keep kKeep>
__device__ inline T load_kept(unsigned long long address) {
  return *static_cast<const T*>(kept<kKeep>(address));
}
template <Keep kKeep, class T>
__device__ inline void store_kept(unsigned long long address, T v) {
  *static_cast<T*>(kept<kKeep>(address)) = v;
}

/// Loads a word that other blocks change by atomics, from L2.
__device__ inline unsigned long long load_shared_word(const unsigned long long* from) {
  unsigned long long out;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(out) : "l"(from));
  return out;
}

/// Loads data that is not read again: caches drop it first.
template <class T>
__device__ inline T load_once(const T* from) {
  return __ldcs(from);
}

/// Prefetches the sector that contains `at` to L2.
__device__ inline void prefetch_global(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ inline float bits_to_float(std::uint32_t u) { return __uint_as_float(u); }
__device__ inline std::uint32_t float_to_bits(float x) { return __float_as_uint(x); }

/// The larger one, or NaN where one of them is NaN.
__device__ inline float max_or_nan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

/// Byte i of the result is the byte of (a: 0 to 3, b: 4 to 7) that hex digit i of `choice` selects.
__device__ inline std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b,
                                              std::uint32_t choice) {
  return __byte_perm(a, b, choice);
}

/// Unsigned maximum of the two low and of the two high halves.
__device__ inline std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a, b);
}
/// The larger magnitudes of two bf16 each, with either sign; NaN where one of them is NaN.
__device__ inline std::uint32_t max_magnitude_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
/// Multiplies two bf16 each, rounded to nearest even, subnormal results too.
__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

/// Two f32 to f16, `low` in the low half.
__device__ inline std::uint32_t convert_f16x2(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// Two f32 to bf16, `low` in the low half; a NaN becomes 0x7fff, whatever its sign.
__device__ inline std::uint32_t convert_bf16x2(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// Four f32 to e4m3, the first in the low byte, saturating; a NaN becomes 0x7f or 0xff.
__device__ inline std::uint32_t convert_e4m3x4(float a, float b, float c, float d) {
  std::uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | static_cast<std::uint32_t>(high) << 16;
}
/// Two e4m3 in the low 16 bits of `codes` to f16, exactly; a NaN stays some NaN.
__device__ inline std::uint32_t e4m3x2_to_f16x2(std::uint32_t codes) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(codes)));
  return halves;
}
/// Two f16 to f32.
__device__ inline void widen_f16x2(std::uint32_t halves, float& first, float& second) {
  asm("{ .reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
      : "=f"(first), "=f"(second)
      : "r"(halves));
}
/// Two e4m3 in the low 16 bits of `codes` to f32, exactly; a NaN stays some NaN.
__device__ inline void convert_from_e4m3x2(std::uint32_t codes, float& first, float& second) {
  widen_f16x2(e4m3x2_to_f16x2(codes), first, second);
}
/// The larger magnitudes of two f16 each, with either sign; NaN where one of them is NaN.
__device__ inline std::uint32_t max_magnitude_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

}  // namespace lathe::cuda

#else
#include "kernels/cuda/common/emulator.h"
#endif
