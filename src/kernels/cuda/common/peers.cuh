// Memory that several GPUs and the host share: loads and stores that they see, and waiting for
// them. With an ordinary compiler the emulator runs the other devices while a thread waits.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

/// Rounds of a wait between two looks at the clock and at the host's words.
inline constexpr std::uint32_t kPollRounds = 1024;

/// Each of the four words arrives whole, but the vector need not.
__device__ inline uint4 load_system(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline void store_system(uint4* to, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ inline std::uint32_t load_system(const std::uint32_t* from) {
  std::uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ inline void store_system(std::uint32_t* to, std::uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ inline std::uint64_t load_system(const std::uint64_t* from) {
  std::uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
__device__ inline void store_system(std::uint64_t* to, std::uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}
/// What the thread that stored this value wrote before is visible after the load.
__device__ inline std::uint64_t load_acquire(const std::uint64_t* from) {
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
__device__ inline void store_release(std::uint64_t* to, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}

__device__ inline std::uint64_t global_nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// Every round of a loop that waits for another device or the host calls this. Meanwhile no thread
/// of the block may count on shared memory: in the emulator all devices have the same.
__device__ inline void pause_poll() {}

/// Waits for the block's threads; whether any of them passes true.
__device__ inline bool sync_block_or(bool v) { return __syncthreads_or(v ? 1 : 0) != 0; }

}  // namespace lathe::cuda

#else

namespace lathe::cuda {

inline constexpr std::uint32_t kPollRounds = 4;

template <class T>
T load_system(const T* from) {
  return load_global<T>(reinterpret_cast<unsigned long long>(from));
}
template <class T>
void store_system(T* to, std::type_identity_t<T> v) {
  store_global(reinterpret_cast<unsigned long long>(to), v);
}
inline std::uint64_t load_acquire(const std::uint64_t* from) { return load_system(from); }
inline void store_release(std::uint64_t* to, std::uint64_t v) { store_system(to, v); }

// A microsecond passes with every look at the clock, so that tests do not depend on the machine's.
inline std::uint64_t global_nanoseconds() {
  static std::uint64_t now = 0;
  return now += 1000;
}
inline void pause_poll() { emulated::pause_poll(); }
inline bool sync_block_or(bool v) {
  emulated::Machine& m = emulated::machine;
  if (v) m.votes[emulated::rank()] = true;
  sync_block();
  const bool any = m.votes[emulated::rank()];
  sync_block();
  m.votes[emulated::rank()] = false;
  return any;
}

}  // namespace lathe::cuda

#endif
