// Copies of boxes to several blocks of a cluster.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

/// Copies a box to the blocks of the cluster whose bits are set in `blocks`, at the same shared
/// address, and counts its bytes at each one's barrier.
__device__ inline void copy_box_to_blocks(std::uint32_t to, const void* map, std::int32_t x,
                                          std::int32_t y, std::int32_t z, std::uint32_t barrier,
                                          std::uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}
/// The same for copy_turns_box().
__device__ inline void copy_turns_box_to_blocks(std::uint32_t to, const void* map, std::int32_t x,
                                                std::int32_t eight, std::int32_t page,
                                                std::uint32_t barrier, std::uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(0), "r"(eight), "r"(page), "r"(barrier),
      "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}

}  // namespace lathe::cuda

#else

namespace lathe::cuda {

inline void copy_box_to_blocks(std::uint32_t to, const void* map, int x, int y, int z,
                               std::uint32_t barrier, std::uint32_t blocks) {
  for (int block = 0; block < 16; ++block) {
    if ((blocks >> block & 1) != 0) copy_box_of(block, to, map, x, y, z, barrier);
  }
}
inline void copy_turns_box_to_blocks(std::uint32_t to, const void* map, int x, int eight, int page,
                                     std::uint32_t barrier, std::uint32_t blocks) {
  copy_box_to_blocks(to, map, x, 8 * eight, page, barrier, blocks);
}

}  // namespace lathe::cuda

#endif
