// Stores to shared memory of other blocks of a cluster, and transposes of small matrices: what a
// split-K reduction needs beyond hopper.cuh.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

#ifdef __CUDACC__

namespace lathe::cuda {

/// Stores 16 bytes at address `to` of block `block`'s shared memory, and counts them at that
/// block's `barrier`.
__device__ inline void store_async_of(std::uint32_t to, std::uint32_t block, float4 v,
                                      std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .b32 there, full;\nmapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 full, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[there], {%3, %4, %5, %6}, [full];\n}" ::"r"(to),
      "r"(barrier), "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
/// barrier_wait() for data that other blocks of the cluster have stored.
__device__ inline void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra wait;\nready:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Transposes an 8 x 8 matrix of 16-bit elements. Lane l holds columns 2 (l % 4) and + 1 of row l /
/// 4, before and after.
__device__ inline std::uint32_t transpose_matrix(std::uint32_t v) {
  std::uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
  return out;
}

}  // namespace lathe::cuda

#else

namespace lathe::cuda {

inline void store_async_of(std::uint32_t to, std::uint32_t block, float4 v, std::uint32_t barrier) {
  std::memcpy(emulated::shared_at(to, sizeof v, static_cast<int>(block)), &v, sizeof v);
  emulated::PhaseBarrier& b = emulated::phase_barrier(barrier, static_cast<int>(block));
  // The bytes may arrive before the block has announced them.
  b.bytes -= sizeof v;
  LATHE_CHECK(b.bytes >= 0 || b.missing > 0, "more bytes than a barrier expects");
  emulated::end_phase(b);
}
inline void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  barrier_wait(barrier, parity);
}
inline std::uint32_t transpose_matrix(std::uint32_t v) {
  std::uint32_t out = 0;
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * (lane() % 4) + i, column = lane() / 4;
    const std::uint32_t word = emulated::shuffle(v, 4 * row + column / 2);
    out |= (word >> 16 * (column % 2) & 0xffffu) << 16 * i;
  }
  return out;
}

}  // namespace lathe::cuda

#endif
