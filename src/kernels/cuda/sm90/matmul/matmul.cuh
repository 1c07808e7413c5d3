// GEMM with weights on Hopper: out[token, row] = sum over k of x[token, k] w[row, k]. One
// persistent kernel for all numbers of tokens.
//
//   stage of K                        work tile
//   weights  [128 rows, 128 bytes]          tokens ->
//   tokens   [kTokens, 128 bytes]     rows  warpgroup 0: up to 64 rows x kTokens
//     x up to 12, by TMA                    warpgroup 1: up to 64 rows x kTokens
//
// A producer warp fills the stages; two consumer warpgroups multiply (matmul_consumer.cuh). With
// few tokens, the tile height and the number of parts of K are chosen so that all SMs read about
// the same amount of weights. Each block of a cluster computes one part of K, and they add their
// sums through distributed shared memory. With many tokens, a cluster of two blocks computes two
// tiles of weight rows for the same tokens; each block loads half of the tokens and multicasts them
// to both. e4m3 tokens by e4m3 weights
// then have the tokens on M (matmul_many.cuh). With bf16, boxes of 64 tokens are dealt evenly to
// tiles of up to 256, and three warpgroups share a tile where 192 weight rows fill the SMs better.
//
// Packed weights of few tokens also have tiles of 256 rows by four warpgroups and of 64 rows by one
// (deep/).
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_consumer.cuh"
#include "kernels/cuda/sm90/matmul/matmul_many.cuh"
#include "kernels/cuda/sm90/matmul/matmul_producer.cuh"

namespace lathe::cuda {

template <class T>
static __global__ void __launch_bounds__(T::kThreads, T::kShares ? 2 : T::kBlocks)
    matmul_kernel(const __grid_constant__ MatmulParams p, const __grid_constant__ MatmulMaps maps) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const MatmulShared<T> s{shared_address(shared_bytes)};
  const int cluster_blocks = T::kPair ? T::kPairBlocks : T::kGrouped ? 1 : p.split;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    constexpr int kConsumerWarps = T::kConsumers / 32;
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(s.full(i), 1);
      barrier_init(s.empty(i), (T::kQuad ? 3 : T::kPair ? 2 : 1) * kConsumerWarps);
    }
    const int receivers = T::kEights < cluster_blocks ? T::kEights : cluster_blocks;
    barrier_init(s.partials_full(), 1);
    barrier_init(s.partials_empty(), receivers * kConsumerWarps);
    barriers_visible();
  }
  // Other blocks of the cluster arrive at these barriers, so they must be initialized first.
  if (cluster_blocks > 1) {
    sync_cluster();
  } else {
    sync_block();
  }
  // A launch after that of a grouped GEMM may read offsets before its own wait (offsets_known): it
  // begins once those here are there.
  const bool waits = T::kGrouped && p.offsets != nullptr && p.offsets_known == 0;
  if (!waits) let_next_begin();
  // The compiler must see that branches to roles are of whole warps: only then may it use uniform
  // registers in them.
  const int warp = warp_value(thread / 32);
  constexpr int kProducer = T::kConsumers / 32;
  const bool produces = warp == kProducer;
  if (produces && elected()) MatmulProducer<T>(p, maps, s).begin();
  if constexpr (T::kGrouped) {
    if (waits) {
      wait_for_previous();
      let_next_begin();
    }
    if (warp == 0) list_groups<T>(p, s, thread);
    sync_block();
  }
  if (warp >= kProducer) {
    if constexpr (T::kMoves) lower_registers<T::kProducerRegisters>();
    if (produces && elected()) MatmulProducer<T>(p, maps, s).run();
  } else {
    if constexpr (T::kMoves) raise_registers<T::kConsumerRegisters>();
    if constexpr (T::kTokensOnM) {
      MatmulManyConsumer<T>(p, maps, s, thread).run();
    } else {
      MatmulConsumer<T>(p, maps, s, thread).run();
    }
  }
  // No block exits while others may access its shared memory.
  if (cluster_blocks > 1) {
    sync_warp();
    sync_cluster();
  }
}

}  // namespace lathe::cuda
