// The blocks of a cluster as a team that shares one row's work and exchanges small results through
// shared memory.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

inline constexpr int kMostTeamBlocks = 8;  // of a cluster on any GPU

/// Block `block`'s counterpart of `mine`, which is in dynamic shared memory.
#ifdef __CUDACC__
template <class T>
__device__ inline T* shared_of_block(T* mine, int block) {
  return static_cast<T*>(__cluster_map_shared_rank(mine, static_cast<unsigned>(block)));
}
#else
template <class T>
T* shared_of_block(T* mine, int block) {
  const auto offset =
      reinterpret_cast<unsigned char*>(mine) - emulated::shared_memory[emulated::rank()];
  return reinterpret_cast<T*>(emulated::shared_memory[block] + offset);
}
#endif

/// A block's part in its team. All threads of all blocks make the same calls. The kernel must
/// sync() after the last exchange, because a block's shared memory ends with the block.
template <class Shared>
class BlockTeam {
 public:
  /// `blocks` of the team, the cluster's size. `shared` is at the start of dynamic shared memory.
  __device__ BlockTeam(unsigned char* shared, int blocks)
      : s(*reinterpret_cast<Shared*>(shared)),
        size(blocks),
        rank(static_cast<int>(blockIdx.x) % blocks) {}

  /// Waits for all threads of the team, whose stores to shared memory are visible after it.
  __device__ void sync() const { size == 1 ? sync_block() : sync_cluster(); }
  /// The slot (0 or 1) of the next exchange: store, sync(), read. A block that stores to a slot
  /// again has passed the sync() of another exchange, before which all blocks have read the slot.
  __device__ int next_slot() { return exchanges_++ & 1; }
  __device__ Shared& of(int block) const { return *shared_of_block(&s, block); }

  Shared& s;  // of this block
  const int size, rank;

 private:
  int exchanges_ = 0;
};

}  // namespace lathe::cuda
