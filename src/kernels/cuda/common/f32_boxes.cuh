// Copies boxes of f32 from shared memory to a tensor map (row_map.h), stored or added. A row of a
// box has 128 bytes and is swizzled. Nothing is written beyond the map's bounds if its rows are
// multiples of 16 bytes: the GPU always writes the last 16 bytes whole.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

__device__ inline void store_f32_box(const void* map, std::int32_t x, std::int32_t y,
                                     std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(0), "r"(from)
      : "memory");
}
/// Adds to each element once, rounded to nearest. Magnitudes below 2^-126 count as zero.
__device__ inline void add_f32_box(const void* map, std::int32_t x, std::int32_t y,
                                   std::uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group "
      "[%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(0), "r"(from)
      : "memory");
}
/// Commits this thread's boxes since the last call as a group.
__device__ inline void end_box_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most kLater groups of this thread have not been read from shared memory yet.
template <int kLater>
__device__ inline void wait_box_groups() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLater) : "memory");
}

}  // namespace lathe::cuda

#else

namespace lathe::cuda {

namespace emulated {
template <class Write>
void write_f32_box(const void* map, int x, int y, std::uint32_t from, Write write) {
  PageMap m;
  std::memcpy(&m, map, sizeof m);
  LATHE_CHECK(
      m.element_bytes == 4 && m.box_bytes == 128 && m.row_bytes % 16 == 0 && m.row_end % 16 == 0,
      "a map of f32 rows of and at multiples of 16 bytes");
  for (std::int64_t r = 0; r < m.box_rows && y + r < m.page_rows; ++r) {
    auto* const row =
        reinterpret_cast<float*>(const_cast<unsigned char*>(m.base) + (y + r) * m.row_bytes);
    for (int c = 0; c < 32 && (x + c) * 4 < m.row_end; ++c) {
      const std::uint32_t at = swizzle_128(from + static_cast<std::uint32_t>(r * 128 + c * 4));
      float v;
      std::memcpy(&v, shared_at(at, 4), 4);
      write(row[x + c], v);
    }
  }
}
}  // namespace emulated

inline void store_f32_box(const void* map, int x, int y, std::uint32_t from) {
  emulated::write_f32_box(map, x, y, from, [](float& to, float v) { to = v; });
}
inline void add_f32_box(const void* map, int x, int y, std::uint32_t from) {
  emulated::write_f32_box(map, x, y, from, [](float& to, float v) { to = to + v; });
}
inline void end_box_group() {}
template <int kLater>
inline void wait_box_groups() {}

}  // namespace lathe::cuda

#endif
