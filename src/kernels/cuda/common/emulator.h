// Runs a kernel on the CPU, one block or cluster after another. Every thread is a coroutine that
// yields at barriers and shuffles. With it, tests run the device code itself, indices and all,
// without a GPU. It finds wrong results, accesses outside an array (under AddressSanitizer) and
// barriers that not all threads reach. It does not find races.
//
// Only tests include it (through dialect.cuh, when an ordinary compiler builds kernels). Its state
// is global, like threadIdx: one kernel at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <ucontext.h>

#include "base/check.h"
#include "base/float_formats.h"

// CUDA's headers also define some of these for ordinary compilers.
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define LATHE_UNROLL
#define LATHE_ROLLED
#define LATHE_UNROLL_BY(n)

namespace lathe::cuda {

struct uint2 {
  std::uint32_t x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

struct Barrier {
  int waiting = 0;
  std::int64_t generation = 0;
};

// A fifth of the tests' time is spent in context switches, and libc's longjmp searches for cleanup
// handlers each time. The builtins do not.
#ifdef __x86_64__
using Jump = void* [5];
#define LATHE_SET_JUMP(at) __builtin_setjmp(at)
// Not inlined: a function may not contain both builtins.
[[noreturn, gnu::noinline]] inline void jump(Jump to) { __builtin_longjmp(to, 1); }
#else
using Jump = jmp_buf;
#define LATHE_SET_JUMP(at) _setjmp(at)
[[noreturn]] inline void jump(Jump to) { _longjmp(to, 1); }
#endif

struct Thread {
  Jump state;
  std::unique_ptr<char[]> stack;  // reused by the threads of all later blocks
  bool finished = false;
  // What the thread waits for: the barrier's next generation, or ready(condition).
  Barrier* barrier = nullptr;
  std::int64_t generation = 0;
  bool (*ready)(void* condition) = nullptr;
  void* condition = nullptr;
  bool polling = false;  // it waits for another device or the host: pause_poll()
};

inline constexpr int kWarp = 32;
inline constexpr int kClusterBlocks = 8;  // most blocks of a cluster
inline constexpr std::size_t kStack = 128 << 10;

struct Machine {
  std::vector<Thread> threads;  // of a cluster, one block after another
  std::vector<Barrier> warps;
  // The value that each thread passes to a shuffle. There are two sets, used alternately: a lane
  // can reach the next shuffle before another lane has read from this one, but not the one after.
  std::vector<std::uint64_t> lanes[2];
  Barrier blocks[kClusterBlocks], cluster;
  bool votes[kClusterBlocks] = {};  // of sync_block_or()
  int block_threads = 0, cluster_threads = 0;
  int current = 0;
  int finished = 0;
  std::int64_t clusters_begun = 0;
  // Of run_cluster(), which a jump returns to.
  int turn = 0, at = 0;
  bool progress = false, polls = false;
  Jump scheduler;
  std::function<void()> body;
};
inline Machine machine;

/// Runs other devices until they need this one, or until time has passed. The fake runtime sets it;
/// a kernel that runs outside of it must not poll.
inline void (*run_others)() = nullptr;

[[gnu::noinline]] inline void yield() {
  Machine& m = machine;
  if (LATHE_SET_JUMP(m.threads[static_cast<std::size_t>(m.current)].state) == 0) {
    jump(m.scheduler);
  }
}

inline void wait(Barrier& barrier, int expected) {
  Thread& me = machine.threads[static_cast<std::size_t>(machine.current)];
  if (++barrier.waiting == expected) {
    barrier.waiting = 0;
    ++barrier.generation;
    return;
  }
  me.barrier = &barrier;
  me.generation = barrier.generation;
  yield();
  me.barrier = nullptr;
}

/// The current thread's block in its cluster.
inline int rank() { return machine.current / machine.block_threads; }
inline Barrier& warp_of(int thread) {
  return machine.warps[static_cast<std::size_t>(thread / kWarp)];
}

/// Waits until `ready` holds; other threads run meanwhile. run_cluster() reports a deadlock when
/// all threads wait.
template <class Ready>
void wait_until(Ready ready) {
  if (ready()) return;
  Thread& me = machine.threads[static_cast<std::size_t>(machine.current)];
  me.condition = &ready;
  me.ready = [](void* condition) { return (*static_cast<Ready*>(condition))(); };
  yield();
  me.ready = nullptr;
}

/// A round of a loop that polls memory of another device or the host: the others run before the
/// thread's next round.
inline void pause_poll() {
  Thread& me = machine.threads[static_cast<std::size_t>(machine.current)];
  me.polling = true;
  yield();
}

/// The values that the warp's lanes pass, valid until the lane's next collective. All lanes must
/// call it, as with a full mask.
template <class T>
const std::uint64_t* exchange(T v) {
  const int me = machine.current;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof v);
  std::vector<std::uint64_t>& lanes = machine.lanes[warp_of(me).generation & 1];
  lanes[static_cast<std::size_t>(me)] = bits;
  wait(warp_of(me), kWarp);
  return lanes.data() + me / kWarp * kWarp;
}
template <class T>
T shuffle(T v, int source_of_lane) {
  const std::uint64_t bits = exchange(v)[source_of_lane];
  T out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Runs the same thread of one block after another: a fresh stack costs two system calls.
inline void thread_main() {
  for (;;) {
    machine.body();
    machine.threads[static_cast<std::size_t>(machine.current)].finished = true;
    ++machine.finished;
    yield();
  }
}

[[noreturn, gnu::noinline]] inline void begin_on_new_stack(Thread& t) {
  static ucontext_t start;
  t.stack = std::make_unique<char[]>(kStack);
  getcontext(&start);
  start.uc_stack.ss_sp = t.stack.get();
  start.uc_stack.ss_size = kStack;
  start.uc_link = nullptr;
  makecontext(&start, thread_main, 0);
  setcontext(&start);
  std::abort();
}

/// blockIdx: the first of `blocks` blocks of block_threads threads each.
inline void run_cluster(int block_threads, int blocks) {
  Machine& m = machine;
  LATHE_CHECK(blocks == 1 || (blocks <= kClusterBlocks && block_threads % kWarp == 0),
              "a cluster of more than eight blocks, or of parts of warps");
  const int threads = block_threads * blocks;
  const Index3 first = blockIdx;
  m.block_threads = block_threads;
  m.cluster_threads = threads;
  // The vector never shrinks: threads and their stacks are reused by later blocks.
  m.threads.resize(std::max(m.threads.size(), static_cast<std::size_t>(threads)));
  m.warps.assign(static_cast<std::size_t>((threads + kWarp - 1) / kWarp), {});
  for (auto& lanes : m.lanes) lanes.assign(m.threads.size(), 0);
  for (Barrier& b : m.blocks) b = {};
  m.cluster = {};
  m.finished = 0;
  ++m.clusters_begun;
  for (bool& vote : m.votes) vote = false;
  for (Thread& t : m.threads) {
    t.finished = false;
    t.barrier = nullptr;
    t.ready = nullptr;
    t.polling = false;
  }
  const int leader = static_cast<int>(m.clusters_begun % blocks);
  while (m.finished < threads) {
    m.progress = m.polls = false;
    // Switch to another block only when this one cannot go on. Blocks then drift as far apart as
    // their barriers allow, which finds missing ones.
    for (m.turn = 0; m.turn < blocks && !m.progress; ++m.turn) {
      const int begin = (leader + m.turn) % blocks * block_threads;
      for (m.at = begin; m.at < begin + block_threads; ++m.at) {
        Thread& t = m.threads[static_cast<std::size_t>(m.at)];
        if (t.finished || (t.barrier != nullptr && t.barrier->generation == t.generation)) continue;
        m.current = m.at;
        if (t.ready != nullptr && !t.ready(t.condition)) continue;
        // A round of a poll is no progress, or the threads of a block could starve other devices.
        m.progress = m.progress || !t.polling;
        m.polls = m.polls || t.polling;
        t.polling = false;
        const auto thread = static_cast<unsigned>(m.at % block_threads);
        threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
        blockIdx = {first.x + static_cast<unsigned>(m.at / block_threads), first.y, first.z};
        if (LATHE_SET_JUMP(m.scheduler) != 0) continue;
        if (t.stack) jump(t.state);
        begin_on_new_stack(t);
      }
    }
    LATHE_CHECK(m.progress || m.polls || m.finished == threads,
                "a barrier that not all threads reach");
    if (m.progress || !m.polls || m.finished == threads) continue;
    LATHE_CHECK(run_others != nullptr, "a kernel that polls, run without the fake runtime");
    run_others();
  }
}

}  // namespace emulated

/// Emulates kernel<<<grid, block>>>(params...) with clusters of `cluster` blocks along x.
template <class Kernel, class... Params>
void emulate_blocks(int cluster, Index3 grid, Index3 block, Kernel kernel,
                    const Params&... params) {
  LATHE_CHECK(grid.x % static_cast<unsigned>(cluster) == 0, "a grid of whole clusters");
  LATHE_CHECK(block.z == 1, "blocks of two dimensions at most");
  gridDim = grid;
  blockDim = block;
  emulated::machine.body = [&] { kernel(params...); };
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += static_cast<unsigned>(cluster)) {
        blockIdx = {x, y, z};
        emulated::run_cluster(static_cast<int>(block.x * block.y), cluster);
      }
    }
  }
}
template <class Kernel, class... Params>
void emulate_clusters(int blocks, Index3 grid, int threads, Kernel kernel,
                      const Params&... params) {
  grid.z = std::max(grid.z, 1u);
  emulate_blocks(blocks, grid, {static_cast<unsigned>(threads), 1, 1}, kernel, params...);
}
template <class Kernel, class... Params>
void emulate(Index3 grid, int threads, Kernel kernel, const Params&... params) {
  emulate_clusters(1, grid, threads, kernel, params...);
}

inline int lane() { return emulated::machine.current % emulated::kWarp; }
template <class T>
T shuffle_xor(T v, int lanes) {
  return emulated::shuffle(v, lane() ^ lanes);
}
template <class T>
T shuffle_up(T v, int lanes) {
  return emulated::shuffle(v, lane() < lanes ? lane() : lane() - lanes);
}
template <class T>
T shuffle(T v, std::uint32_t source) {
  return emulated::shuffle(v, static_cast<int>(source % emulated::kWarp));
}
inline std::uint32_t warp_ballot(bool v) {
  const std::uint64_t* lanes = emulated::exchange(v);
  std::uint32_t bits = 0;
  for (int l = 0; l < emulated::kWarp; ++l) bits |= static_cast<std::uint32_t>(lanes[l]) << l;
  return bits;
}
inline std::uint32_t warp_match(std::int32_t v) {
  const std::uint64_t* lanes = emulated::exchange(v);
  std::uint32_t bits = 0;
  for (int l = 0; l < emulated::kWarp; ++l) {
    bits |= (static_cast<std::uint32_t>(lanes[l]) == static_cast<std::uint32_t>(v) ? 1u : 0u) << l;
  }
  return bits;
}
template <class T>
T warp_value(T v) {
  return v;
}
inline bool warp_any(bool v) { return warp_ballot(v) != 0; }
inline std::uint32_t warp_max(std::uint32_t v) {
  const std::uint64_t* lanes = emulated::exchange(v);
  for (int l = 0; l < emulated::kWarp; ++l) v = std::max(v, static_cast<std::uint32_t>(lanes[l]));
  return v;
}
inline std::uint32_t warp_sum(std::uint32_t v) {
  const std::uint64_t* lanes = emulated::exchange(v);
  return static_cast<std::uint32_t>(
      std::accumulate(lanes, lanes + emulated::kWarp, std::uint64_t{0}));
}
inline void sync_warp() {
  emulated::wait(emulated::warp_of(emulated::machine.current), emulated::kWarp);
}
// Kernels run one at a time, so there is nothing to wait for.
inline void wait_for_previous() {}
inline void let_next_begin() {}
inline void sync_block() {
  emulated::wait(emulated::machine.blocks[emulated::rank()], emulated::machine.block_threads);
}

template <class T>
T atomicMax(T* at, T v) {
  const T old = *at;
  *at = old < v ? v : old;
  return old;
}
template <class T>
T atomicMin(T* at, T v) {
  const T old = *at;
  *at = v < old ? v : old;
  return old;
}
template <class T>
T atomicAdd(T* at, T v) {
  const T old = *at;
  *at += v;
  return old;
}

inline float bits_to_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }
inline std::uint32_t float_to_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }

// As on the GPU, a NaN loses against a number, quiet or signalling. With C's fmaxf a signalling NaN
// wins.
inline float fmaxf(float a, float b) { return std::isnan(a) || b > a ? b : a; }
inline float max_or_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? bits_to_float(0x7fffffffu) : fmaxf(a, b);
}
inline float fminf(float a, float b) { return std::isnan(a) || b < a ? b : a; }

inline std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t choice) {
  const std::uint64_t bytes = a | std::uint64_t{b} << 32;
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned which = choice >> (4 * i) & 7u;
    out |= static_cast<std::uint32_t>(bytes >> (8 * which) & 0xffu) << (8 * i);
  }
  return out;
}

// Checks alignment: a GPU faults where an address is not a multiple of the access size.
template <class T>
T load_global(unsigned long long address) {
  LATHE_CHECK(address % sizeof(T) == 0, "a load from an address that is no multiple of its size");
  T out;
  std::memcpy(&out, reinterpret_cast<const void*>(address), sizeof out);
  return out;
}
template <class T>
void store_global(unsigned long long address, T v) {
  LATHE_CHECK(address % sizeof(T) == 0, "a store to an address that is no multiple of its size");
  std::memcpy(reinterpret_cast<void*>(address), &v, sizeof v);
}
inline void add_global(float* to, float v) { *to += v; }

enum class Keep { longest, shortest };
template <class T, Keep>
T load_kept(unsigned long long address) {
  return load_global<T>(address);
}
template <Keep, class T>
void store_kept(unsigned long long address, T v) {
  store_global(address, v);
}

inline unsigned long long load_shared_word(const unsigned long long* from) { return *from; }

template <class T>
T load_once(const T* from) {
  return *from;
}

// Reads, so that AddressSanitizer sees an address outside an array.
inline void prefetch_global(const void* at) {
  static_cast<void>(*static_cast<const volatile unsigned char*>(at));
}

inline std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
inline std::uint32_t max_magnitude_bf16x2(std::uint32_t a, std::uint32_t b) {
  const auto one = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t larger = std::max(x & 0x7fffu, y & 0x7fffu);
    return larger > 0x7f80u ? 0x7fffu : larger | ((x ^ y) & 0x8000u);
  };
  return one(a & 0xffffu, b & 0xffffu) | one(a >> 16, b >> 16) << 16;
}
inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  const auto high = to_bf16(bits_to_float(a & 0xffff0000u) * bits_to_float(b & 0xffff0000u));
  const auto low = to_bf16(bits_to_float(a << 16) * bits_to_float(b << 16));
  return std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
}
inline std::uint32_t convert_f16x2(float low, float high) {
  return std::uint32_t{to_f16(low).bits} | std::uint32_t{to_f16(high).bits} << 16;
}

// Gives the NaN that the GPU's instructions give, which differs from float_formats.h.
inline std::uint32_t convert_bf16x2(float low, float high) {
  const auto one = [](float x) { return std::isnan(x) ? 0x7fffu : std::uint32_t{to_bf16(x).bits}; };
  return one(low) | one(high) << 16;
}
inline std::uint32_t convert_e4m3x4(float a, float b, float c, float d) {
  const auto one = [](float x) { return std::isnan(x) ? 0x7fu : std::uint32_t{to_e4m3(x).bits}; };
  return one(a) | one(b) << 8 | one(c) << 16 | one(d) << 24;
}
inline std::uint32_t e4m3x2_to_f16x2(std::uint32_t codes) {
  const auto one = [](std::uint32_t code) {
    const float x = to_f32(e4m3{static_cast<std::uint8_t>(code)});
    return std::isnan(x) ? 0x7fffu : std::uint32_t{to_f16(x).bits};
  };
  return one(codes & 0xffu) | one(codes >> 8 & 0xffu) << 16;
}
inline void widen_f16x2(std::uint32_t halves, float& first, float& second) {
  first = to_f32(f16{static_cast<std::uint16_t>(halves)});
  second = to_f32(f16{static_cast<std::uint16_t>(halves >> 16)});
}
inline std::uint32_t max_magnitude_f16x2(std::uint32_t a, std::uint32_t b) {
  const auto one = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t larger = std::max(x & 0x7fffu, y & 0x7fffu);
    return larger > 0x7c00u ? 0x7fffu : larger | ((x ^ y) & 0x8000u);
  };
  return one(a & 0xffffu, b & 0xffffu) | one(a >> 16, b >> 16) << 16;
}
inline void convert_from_e4m3x2(std::uint32_t codes, float& first, float& second) {
  const auto one = [](std::uint32_t code) {
    const float x = to_f32(e4m3{static_cast<std::uint8_t>(code)});
    return std::isnan(x) ? bits_to_float(0x7fffffffu) : x;
  };
  first = one(codes & 0xffu);
  second = one(codes >> 8 & 0xffu);
}

}  // namespace lathe::cuda
