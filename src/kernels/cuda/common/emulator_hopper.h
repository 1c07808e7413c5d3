// Hopper's pipelines on the emulator (emulator.h): implements hopper.cuh for an ordinary compiler.
//
// Copies run synchronously when they are issued. Each block of a cluster has an array as shared
// memory, with addresses from kSharedBase. So the emulator finds wrong addresses, swizzles,
// parities and counts, and deadlocks between producers and consumers. It does not find a missing
// fence or a wait that comes too late.
#pragma once

#include <array>
#include <span>
#include <unordered_map>

#include "kernels/cuda/common/emulator.h"

namespace lathe::cuda {

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  std::int32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace emulated {

inline constexpr std::uint32_t kSharedBase = 1024;
inline constexpr std::size_t kSharedBytes = 227 << 10;
static_assert(kSharedBytes % 1024 == 0);
alignas(1024) inline unsigned char shared_memory[kClusterBlocks][kSharedBytes];

inline unsigned char* shared_at(std::uint32_t address, std::size_t bytes, int block = rank()) {
  LATHE_CHECK(address >= kSharedBase && address - kSharedBase + bytes <= kSharedBytes,
              "an address outside shared memory");
  return shared_memory[block] + (address - kSharedBase);
}
/// A block's shared memory, filled with NaN when the block begins, as its contents are undefined.
inline unsigned char* shared_of_block() {
  static std::int64_t cluster = -1;
  if (cluster != machine.clusters_begun) {
    const int blocks = machine.cluster_threads / machine.block_threads;
    std::memset(shared_memory, 0xff, static_cast<std::size_t>(blocks) * kSharedBytes);
  }
  cluster = machine.clusters_begun;
  return shared_memory[rank()];
}
template <class T>
[[gnu::always_inline]] inline T load_at(std::uint32_t address) {
  T v;
  std::memcpy(&v, shared_at(address, sizeof v), sizeof v);
  return v;
}
template <class T>
[[gnu::always_inline]] inline void store_at(std::uint32_t address, T v) {
  std::memcpy(shared_at(address, sizeof v), &v, sizeof v);
}

struct PhaseBarrier {
  int count = 0;
  int missing = 0;
  unsigned phase = 0;
  std::int64_t bytes = 0;  // announced and not yet copied
};
struct NamedBarrier {
  int arrived = 0;
  std::int64_t generation = 0;
  bool votes = false, outcome = false;  // of group_any()
};
struct Barriers {  // of one block
  std::unordered_map<std::uint32_t, PhaseBarrier> phases;
  std::unordered_map<int, NamedBarrier> named;
};
inline Barriers& barriers(int block = rank()) {
  static std::array<Barriers, kClusterBlocks> all;
  static std::int64_t cluster = -1;
  if (cluster != machine.clusters_begun) all = {};
  cluster = machine.clusters_begun;
  return all[static_cast<std::size_t>(block)];
}
inline PhaseBarrier& phase_barrier(std::uint32_t at, int block = rank()) {
  const auto found = barriers(block).phases.find(at);
  LATHE_CHECK(found != barriers(block).phases.end(), "a barrier that was not initialized");
  return found->second;
}
inline void end_phase(PhaseBarrier& b) {
  if (b.missing > 0 || b.bytes != 0) return;
  b.missing = b.count;
  ++b.phase;
}
inline void arrive(PhaseBarrier& b) {
  LATHE_CHECK(b.missing > 0, "more arrivals than a barrier counts");
  --b.missing;
  end_phase(b);
}
inline bool arrive(NamedBarrier& b, int threads) {
  if (++b.arrived < threads) return false;
  LATHE_CHECK(b.arrived == threads, "more arrivals than a named barrier counts");
  b.arrived = 0;
  ++b.generation;
  return true;
}

inline float bf16_at(std::uint32_t address) {
  return bits_to_float(std::uint32_t{load_at<std::uint16_t>(address)} << 16);
}
inline float bf16_half(std::uint32_t v, int half) {
  return bits_to_float(half == 0 ? v << 16 : v & 0xffff0000u);
}
inline std::uint32_t swizzle_64(std::uint32_t address) { return address ^ (address >> 7 & 3) << 4; }
inline std::uint32_t swizzle_128(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

inline float e4m3_of(std::uint8_t code) { return to_f32(e4m3{code}); }

}  // namespace emulated

#define LATHE_DYNAMIC_SHARED(name) unsigned char* name = emulated::shared_of_block()

inline std::uint32_t shared_address(const void* p) {
  return emulated::kSharedBase +
         static_cast<std::uint32_t>(static_cast<const unsigned char*>(p) -
                                    emulated::shared_memory[emulated::rank()]);
}
inline void barrier_init(std::uint32_t barrier, int count) {
  emulated::barriers().phases[barrier] = {count, count, 0};
}
inline void barrier_arrive(std::uint32_t barrier) {
  emulated::arrive(emulated::phase_barrier(barrier));
}
inline void barrier_arrive(std::uint32_t barrier, int count) {
  for (int i = 0; i < count; ++i) barrier_arrive(barrier);
}
inline void barrier_arrive_if(bool arrives, std::uint32_t barrier, int count) {
  if (arrives) barrier_arrive(barrier, count);
}
inline void barrier_arrive_of(std::uint32_t barrier, std::uint32_t block) {
  emulated::arrive(emulated::phase_barrier(barrier, static_cast<int>(block)));
}
inline void sync_cluster() {
  emulated::wait(emulated::machine.cluster, emulated::machine.cluster_threads);
}
inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  emulated::PhaseBarrier& b = emulated::phase_barrier(barrier);
  emulated::wait_until([&] { return (b.phase & 1) != parity; });
}
inline void barrier_arrive_after_copies(std::uint32_t barrier) { barrier_arrive(barrier); }
inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulated::PhaseBarrier& b = emulated::phase_barrier(barrier);
  b.bytes += bytes;
  emulated::arrive(b);
}
inline void barriers_visible() {}
inline void fence_async_proxy() {}
inline void group_sync(int number, int threads) {
  emulated::NamedBarrier& b = emulated::barriers().named[number];
  const std::int64_t generation = b.generation;
  if (emulated::arrive(b, threads)) return;
  emulated::wait_until([&] { return b.generation != generation; });
}
inline void group_arrive(int number, int threads) {
  emulated::arrive(emulated::barriers().named[number], threads);
}
inline bool group_any(int number, int threads, bool mine) {
  emulated::NamedBarrier& b = emulated::barriers().named[number];
  const std::int64_t generation = b.generation;
  b.votes |= mine;
  if (emulated::arrive(b, threads)) {
    b.outcome = b.votes;
    b.votes = false;
    return b.outcome;
  }
  emulated::wait_until([&] { return b.generation != generation; });
  return b.outcome;
}
/// The emulator's tensor map (tensor_map.h). Reads beyond the last row, page or byte of a row give
/// zeros.
struct PageMap {
  const unsigned char* base;
  std::int64_t page_stride, row_bytes, box_rows;
  int element_bytes = 2, box_bytes = 128;
  std::int64_t page_rows = INT64_MAX, pages = INT64_MAX;
  std::int64_t row_end = INT64_MAX;  // bytes
  std::int64_t turn_stride = 0;      // not 0: boxes alternate 8 rows of each of two arrays
};
inline void copy_box_of(int block, std::uint32_t to, const void* map, int x, int y, int z,
                        std::uint32_t barrier) {
  PageMap m;
  std::memcpy(&m, map, sizeof m);
  const auto width = static_cast<std::uint32_t>(m.box_bytes);
  for (std::int64_t r = 0; r < m.box_rows; ++r) {
    for (std::uint32_t c = 0; c < width; c += 16) {
      const std::uint32_t at = to + static_cast<std::uint32_t>(r) * width + c;
      unsigned char* const place = emulated::shared_at(
          width == 64 ? emulated::swizzle_64(at) : emulated::swizzle_128(at), 16, block);
      const std::int64_t byte = std::int64_t{x} * m.element_bytes + c;
      const std::int64_t row = y + (m.turn_stride == 0 ? r : r / 16 * 8 + r % 8);
      const std::int64_t turn = r / 8 % 2 * m.turn_stride;
      const bool inside = row < m.page_rows && z < m.pages && byte < m.row_end;
      const auto bytes =
          static_cast<std::size_t>(inside ? std::min<std::int64_t>(16, m.row_end - byte) : 0);
      std::memset(place, 0, 16);
      std::memcpy(place, m.base + turn + z * m.page_stride + row * m.row_bytes + byte, bytes);
    }
  }
  emulated::PhaseBarrier& b = emulated::phase_barrier(barrier, block);
  // Another block's bytes may arrive before this block has announced them.
  b.bytes -= m.box_rows * m.box_bytes;
  LATHE_CHECK(
      b.bytes >= 0 ||
          (emulated::machine.cluster_threads > emulated::machine.block_threads && b.missing > 0),
      "more bytes than a barrier expects");
  emulated::end_phase(b);
}
inline void copy_box(std::uint32_t to, const void* map, int x, int y, int z,
                     std::uint32_t barrier) {
  copy_box_of(emulated::rank(), to, map, x, y, z, barrier);
}
inline void copy_box(std::uint32_t to, const void* map, int x, int y, int z, std::uint32_t barrier,
                     std::uint64_t) {
  copy_box(to, map, x, y, z, barrier);
}
inline void copy_turns_box(std::uint32_t to, const void* map, int x, int eight, int page,
                           std::uint32_t barrier, std::uint64_t) {
  copy_box(to, map, x, 8 * eight, page, barrier);
}
inline void copy_async(std::uint32_t to, const void* from, bool valid) {
  unsigned char* at = emulated::shared_at(to, 16);
  LATHE_CHECK(to % 16 == 0, "a copy to an address that is no multiple of 16");
  if (valid) {
    std::memcpy(at, from, 16);
  } else {
    std::memset(at, 0, 16);
  }
}
inline void copy_async_256(std::uint32_t to, const void* from) { copy_async(to, from, true); }
inline bool elected() { return threadIdx.x % emulated::kWarp == 0; }
inline std::uint64_t cache_policy(bool) { return 0; }
inline void copy_row(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                     std::uint64_t) {
  LATHE_CHECK(to % 16 == 0 && bytes % 16 == 0, "a copy of a row that is no multiple of 16");
  std::memcpy(emulated::shared_at(to, bytes), from, bytes);
  emulated::PhaseBarrier& b = emulated::phase_barrier(barrier);
  b.bytes -= bytes;
  LATHE_CHECK(b.bytes >= 0, "more bytes than a barrier expects");
  emulated::end_phase(b);
}
inline void copy_out(unsigned long long to, std::uint32_t from, std::uint32_t bytes) {
  LATHE_CHECK(to % 16 == 0 && from % 16 == 0 && bytes % 16 == 0,
              "a copy to memory that is no multiple of 16");
  std::memcpy(reinterpret_cast<void*>(to), emulated::shared_at(from, bytes), bytes);
}
inline void copy_box_out(const void* map, int x, int y, int z, std::uint32_t from, std::uint64_t) {
  PageMap m;
  std::memcpy(&m, map, sizeof m);
  const auto width = static_cast<std::uint32_t>(m.box_bytes);
  for (std::int64_t r = 0; r < m.box_rows && y + r < m.page_rows && z < m.pages; ++r) {
    for (std::uint32_t c = 0; c < width; c += 16) {
      const std::uint32_t at = from + static_cast<std::uint32_t>(r) * width + c;
      std::memcpy(const_cast<unsigned char*>(m.base) + z * m.page_stride + (y + r) * m.row_bytes +
                      x * m.element_bytes + c,
                  emulated::shared_at(
                      width == 64 ? emulated::swizzle_64(at) : emulated::swizzle_128(at), 16),
                  16);
    }
  }
}
inline void wait_copies_out() {}
inline void copy_async_4(std::uint32_t to, const void* from) {
  LATHE_CHECK(to % 4 == 0, "a copy to an address that is no multiple of 4");
  std::memcpy(emulated::shared_at(to, 4), from, 4);
}
inline void end_copy_group() {}
template <int kLater>
inline void wait_copy_groups() {}
inline void copy_async_8(std::uint32_t to, const void* from) {
  LATHE_CHECK(to % 8 == 0, "a copy to an address that is no multiple of 8");
  std::memcpy(emulated::shared_at(to, 8), from, 8);
}
inline void store_shared(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                         std::uint32_t d) {
  emulated::store_at(to, uint4{a, b, c, d});
}
inline std::uint32_t load_shared_u32(std::uint32_t from) {
  return emulated::load_at<std::uint32_t>(from);
}
inline std::uint64_t load_shared_u64(std::uint32_t from) {
  return emulated::load_at<std::uint64_t>(from);
}
inline uint4 load_shared_u128(std::uint32_t from) { return emulated::load_at<uint4>(from); }
inline std::uint32_t load_shared_u8(std::uint32_t from) {
  return emulated::load_at<std::uint8_t>(from);
}
inline std::uint32_t load_shared_u16(std::uint32_t from) {
  return emulated::load_at<std::uint16_t>(from);
}
inline void store_shared_u16(std::uint32_t to, std::uint32_t v) {
  emulated::store_at(to, static_cast<std::uint16_t>(v));
}
inline void store_shared_u8(std::uint32_t to, std::uint32_t v) {
  emulated::store_at(to, static_cast<std::uint8_t>(v));
}
inline void store_shared_u32(std::uint32_t to, std::uint32_t v) { emulated::store_at(to, v); }
inline void store_shared_u64(std::uint32_t to, std::uint64_t v) { emulated::store_at(to, v); }
inline float load_float(std::uint32_t at) { return emulated::load_at<float>(at); }
inline void store_float(std::uint32_t at, float v) { emulated::store_at(at, v); }
inline void store_float2(std::uint32_t at, float a, float b) {
  emulated::store_at(at, a);
  emulated::store_at(at + 4, b);
}
inline float2 load_float2(std::uint32_t from) { return emulated::load_at<float2>(from); }
inline float4 load_floats(std::uint32_t from) { return emulated::load_at<float4>(from); }
inline void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                           std::uint32_t d) {
  const std::uint32_t words[4] = {a, b, c, d};
  for (int m = 0; m < 4; ++m) {
    const std::uint32_t row = shuffle(to, 8 * m + lane() / 4);
    emulated::store_at(row + static_cast<std::uint32_t>(lane() % 4) * 4, words[m]);
  }
}
inline void load_matrices(std::uint32_t from, std::uint32_t (&v)[4]) {
  for (int m = 0; m < 4; ++m) {
    const std::uint32_t row = shuffle(from, 8 * m + lane() / 4);
    v[m] = emulated::load_at<std::uint32_t>(row + static_cast<std::uint32_t>(lane() % 4) * 4);
  }
}
/// Of each matrix a thread gets two rows of one column: 16-bit elements at two addresses.
inline void load_matrices_trans(std::uint32_t from, std::uint32_t (&v)[4]) {
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int row) {
      const std::uint32_t at = shuffle(from, static_cast<std::uint32_t>(8 * m + row));
      return std::uint32_t{
          emulated::load_at<std::uint16_t>(at + static_cast<std::uint32_t>(lane() / 4) * 2)};
    };
    // All lanes must call a shuffle with the same address, so every lane asks for every row.
    std::uint32_t rows[8];
    for (int r = 0; r < 8; ++r) rows[r] = element(r);
    v[m] = rows[2 * (lane() % 4)] | rows[2 * (lane() % 4) + 1] << 16;
  }
}
/// A thread holds two neighbours of a row, which go to the same position of two columns.
inline void store_matrices_trans(std::uint32_t to, std::span<const std::uint32_t> words) {
  for (std::size_t m = 0; m < words.size(); ++m) {
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t column = shuffle(to, 8 * static_cast<int>(m) + 2 * (lane() % 4) + i);
      emulated::store_at(column + static_cast<std::uint32_t>(lane() / 4) * 2,
                         static_cast<std::uint16_t>(words[m] >> 16 * i));
    }
  }
}
inline void store_matrices_trans(std::uint32_t to, std::uint32_t a) {
  store_matrices_trans(to, std::array{a});
}
inline void store_matrices_trans(std::uint32_t to, std::uint32_t a, std::uint32_t b) {
  store_matrices_trans(to, std::array{a, b});
}
inline void store_matrices_trans(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                 std::uint32_t c, std::uint32_t d) {
  store_matrices_trans(to, std::array{a, b, c, d});
}

template <int kRegisters>
void raise_registers() {}
template <int kRegisters>
void lower_registers() {}

inline std::uint32_t warp_or(std::uint32_t v) {
  for (int lanes = 1; lanes < emulated::kWarp; lanes *= 2) v |= shuffle_xor(v, lanes);
  return v;
}
inline int count_bits(std::uint32_t v) { return __builtin_popcount(v); }
inline float exp2_fast(float x) { return std::exp2(x); }
inline float log2_fast(float x) { return std::log2(x); }
inline std::uint32_t pack_bf16(float low, float high) { return convert_bf16x2(low, high); }
inline std::uint32_t pack_f16(float low, float high) {
  const auto one = [](float x) {
    return std::uint32_t{to_f16(std::isnan(x) ? x : std::clamp(x, -65504.f, 65504.f)).bits};
  };
  return one(low) | one(high) << 16;
}
inline float f16_half(std::uint32_t v, int half) {
  return to_f32(f16{static_cast<std::uint16_t>(v >> 16 * half)});
}
inline float2 unpack_f16(std::uint32_t v) { return {f16_half(v, 0), f16_half(v, 1)}; }
// Too large values become infinite, unlike in pack_f16().
inline std::uint32_t mul_f16x2(std::uint32_t a, std::uint32_t b) {
  const auto half = [&](int i) -> std::uint32_t {
    return to_f16(f16_half(a, i) * f16_half(b, i)).bits;
  };
  return half(0) | half(1) << 16;
}
inline void widen_e4m3_f16(std::uint32_t bytes, std::uint32_t& low, std::uint32_t& high) {
  const auto one = [&](int i) {
    return emulated::e4m3_of(static_cast<std::uint8_t>(bytes >> 8 * i));
  };
  low = pack_f16(one(0), one(1));
  high = pack_f16(one(2), one(3));
}

}  // namespace lathe::cuda
