// sync_cluster() in two parts, for what a block does in between.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

#ifdef __CUDACC__
/// Says that the block runs and that its barriers are there (barriers_visible()). It orders no
/// other accesses to memory.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
/// Says that what the thread has read and written so far is done.
__device__ inline void release_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
/// Waits until all threads of the cluster have arrived.
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
#else
inline void arrive_cluster() {}
inline void release_cluster() {}
inline void wait_cluster() { sync_cluster(); }
#endif

}  // namespace lathe::cuda
