// Latent attention on fp8 caches with f16 operands, 64 M rows per block, A and B swapped: keys on
// M, M rows on N.
//
// Keys stay fp8 in shared memory (load_fp8_rows.cuh). Three consumer warpgroups convert them to f16
// left operands in registers (fp8_operands.cuh):
//
//   S^T [64 keys, 64 M rows]  = K Q^T     Q [M rows, dims] K-major
//   O^T [512 dims, 64 M rows] += V^T P^T  P [M rows, 64 keys] K-major
//
// The score warpgroup computes S and P of all tiles (m64_fp8_scores.cuh). Meanwhile two value
// warpgroups accumulate 256 dimensions each (m64_fp8_values.cuh). A fourth is the producer:
//
//   scores    S1 = K1 Q | softmax 1   | S2 = K2 Q | softmax 2   | ...
//   values              | O += P0 V0  |           | O += P1 V1  | ...
//
// Operands of 32 keys or dimensions are converted in one of several register sets while wgmma runs
// on the others.
#pragma once

#include "kernels/cuda/sm90/latent/m64/m64_fp8_scores.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8_values.cuh"

namespace lathe::cuda {

template <class Format>
static __global__ void __launch_bounds__(M64Fp8<Format>::kThreads, 1)
    latent_m64_fp8_kernel(const __grid_constant__ LatentParams p,
                          const __grid_constant__ CUtensorMap query_map) {
  using W = M64Fp8<Format>;
  if (another_launch_runs(p)) return;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const M64Fp8Shared<Format> s{shared_address(shared_bytes)};
  const typename W::Ring ring = s.ring();
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), kQueryArrivals);
    barrier_init(s.q_empty(), 384);
    barrier_init(s.voted(), 128);
    barrier_init(s.outputs_full(), 128);
    barrier_init(s.outputs_empty(), 256);
    ring.init(256);
    for (unsigned b = 0; b < W::Ring::kBuffers; ++b) {
      barrier_init(s.p_full(b), 128 + 32);  // P, and the scales of the values
      barrier_init(s.scored(b), 128);
      store_shared_u32(s.risen(b), 0);
      store_shared_u32(s.wild(b), 0);
    }
    barriers_visible();
  }
  sync_block();
  // By shuffle(), so that the compiler knows that the warp does not diverge.
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == 3) {
    lower_registers<W::kProducerRegisters>();
    const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.m_blocks;
    const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.m_blocks;
    if (thread < 64) {
      copy_rows<Format>(ring, p.once, W::Ring::kBuffers, thread / 32, thread % 32);
    } else if (thread < 96) {
      // Converts scales to f16 for PV.
      const auto publish_scales = [&](unsigned n) {
        barrier_wait(ring.full(n), W::Ring::parity(n));
        LATHE_ROLLED
        for (int warp = 0; warp < 4; ++warp) {
          make_scales<Format>(ring.keys(n), s.scales(n), warp, thread - 64);
        }
        barrier_arrive(s.p_full(n));
      };
      publish_work<Format, W::kMRows, 1>(p, &query_map, s.q, s.info(), s.q_full(), s.q_empty(),
                                         worker, tile, thread - 64, publish_scales);
    } else {
      SlotResolver<Format, W::kMRows, 1>(p, ring.addresses, worker, tile, thread - 96).run();
      write_keyless(p, thread - 96);
    }
  } else if (group == 2) {
    lower_registers<W::kScoreRegisters>();
    M64Fp8Scores<Format>(p, s, thread).run();
  } else {
    raise_registers<W::kValueRegisters>();
    M64Fp8Values<Format>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
