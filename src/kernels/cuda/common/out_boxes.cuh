// Copies boxes from shared memory to a tensor map (row_map.h) of one page: bf16 or f32 stored, f32
// added. Rows of a box are swizzled over its bytes. Nothing is written beyond the map's bounds if
// its rows are multiples of 16 bytes: the GPU always writes the last 16 bytes whole.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

__device__ inline void store_box(const void* map, std::int32_t x, std::int32_t y,
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
template <class T, class Write>
void write_box(const PageMap& m, int x, int y, std::uint32_t from, Write write) {
  const auto width = static_cast<std::uint32_t>(m.box_bytes);
  LATHE_CHECK(m.element_bytes == static_cast<int>(sizeof(T)) && m.row_bytes % 16 == 0 &&
                  m.row_end % 16 == 0,
              "a map of rows of and at multiples of 16 bytes");
  for (std::int64_t r = 0; r < m.box_rows && y + r < m.page_rows; ++r) {
    auto* const row =
        reinterpret_cast<T*>(const_cast<unsigned char*>(m.base) + (y + r) * m.row_bytes);
    for (std::uint32_t c = 0; c < width / sizeof(T); ++c) {
      const std::int64_t column = x + std::int64_t{c};
      if (column * m.element_bytes >= m.row_end) break;
      const std::uint32_t at =
          from + static_cast<std::uint32_t>(r) * width + c * std::uint32_t{sizeof(T)};
      T v;
      std::memcpy(&v, shared_at(width == 64 ? swizzle_64(at) : swizzle_128(at), sizeof v),
                  sizeof v);
      write(row[column], v);
    }
  }
}
}  // namespace emulated

inline void store_box(const void* map, int x, int y, std::uint32_t from) {
  PageMap m;
  std::memcpy(&m, map, sizeof m);
  if (m.element_bytes == 4) {
    emulated::write_box<float>(m, x, y, from, [](float& to, float v) { to = v; });
  } else {
    emulated::write_box<std::uint16_t>(m, x, y, from,
                                       [](std::uint16_t& to, std::uint16_t v) { to = v; });
  }
}
inline void add_f32_box(const void* map, int x, int y, std::uint32_t from) {
  PageMap m;
  std::memcpy(&m, map, sizeof m);
  emulated::write_box<float>(m, x, y, from, [](float& to, float v) { to = to + v; });
}
inline void end_box_group() {}
template <int kLater>
inline void wait_box_groups() {}

}  // namespace lathe::cuda

#endif
