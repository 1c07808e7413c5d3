// Products out[token, row] = sum over k of x[token, k] w[row, k] on Hopper: one persistent kernel
// for all numbers of tokens.
//
//   stage of K               work tile
//   weights  [128 rows, 128 bytes]          tokens ->
//   tokens   [kTokens, 128 bytes]     rows  warpgroup 0: up to 64 rows x kTokens
//     x up to 12, by TMA                    warpgroup 1: up to 64 rows x kTokens
//
// A producer warp keeps stages full; two consumer warpgroups multiply (matmul_consumer.cuh). Few
// tokens: the tile's rows and the parts of K are chosen so that all SMs read weights alike, and the
// blocks of a cluster, one for each part, add their sums through each other's shared memory. Many
// tokens: a cluster of two shares the tokens of two tiles, each block loading half of them for
// both.
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_consumer.cuh"
#include "kernels/cuda/sm90/matmul/matmul_producer.cuh"

namespace lathe::cuda {

template <class T>
static __global__ void __launch_bounds__(T::kThreads, 1)
    matmul_kernel(const __grid_constant__ MatmulParams p, const __grid_constant__ MatmulMaps maps) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const MatmulShared<T> s{shared_address(shared_bytes)};
  const int cluster_blocks = T::kPair ? 2 : T::kGrouped ? 1 : p.split;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    constexpr int kConsumerWarps = T::kConsumers / 32;
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(s.full(i), 1);
      barrier_init(s.empty(i), T::kPair ? 2 * kConsumerWarps : kConsumerWarps);
    }
    const int receivers = T::kEights < cluster_blocks ? T::kEights : cluster_blocks;
    barrier_init(s.partials_full(), 1);
    barrier_init(s.partials_empty(), receivers * kConsumerWarps);
    barriers_visible();
  }
  // Other blocks of the cluster arrive at these barriers.
  if (cluster_blocks > 1) {
    sync_cluster();
  } else {
    sync_block();
  }
  let_next_begin();
  if constexpr (T::kGrouped) {
    wait_for_previous();
    if (thread < 32) list_groups(p, s, thread);
    sync_block();
  }
  if (thread >= T::kConsumers) {
    lower_registers<T::kProducerRegisters>();
    if (thread < T::kConsumers + 32 && elected()) MatmulProducer<T>(p, maps, s).run();
  } else {
    raise_registers<T::kConsumerRegisters>();
    MatmulConsumer<T>(p, maps, s, thread).run();
  }
  // No block leaves while others may use its shared memory.
  if (cluster_blocks > 1) {
    sync_warp();
    sync_cluster();
  }
}

}  // namespace lathe::cuda
