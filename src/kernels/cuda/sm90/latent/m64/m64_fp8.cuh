// Latent attention on fp8 caches, f16 products: a block does 64 lines.
//
// Keys stay fp8 in shared memory (load_fp8_rows.cuh). Three warpgroups multiply and make their left operands
// in registers (fp8_operands.cuh), so both products are turned, with lines on the N side:
//
//   S^T [64 keys, lines]  = K Q^T     Q [lines, dims] K-major
//   O^T [dims, lines]    += V^T P^T   weights P [lines, 64 keys] K-major
//
// One makes scores and weights of all tiles of keys (m64_fp8_scores.cuh), two add values, 256
// dimensions each (m64_fp8_values.cuh), while that one weighs the next tile. A fourth is the producer:
//
//   scores    S1 = K1 Q | weights 1   | S2 = K2 Q | weights 2   | ...
//   values              | O += P0 V0  |           | O += P1 V1  | ...
//
// Operands are made of 32 keys or dimensions at a time in one of several sets of registers, while the
// products of the others run.
#pragma once

#include "kernels/cuda/sm90/latent/m64/m64_fp8_scores.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8_values.cuh"

namespace lathe::cuda {

template <class Format>
static __global__ void __launch_bounds__(WideFp8<Format>::kThreads, 1)
    latent_wide_fp8_kernel(const __grid_constant__ LatentParams p,
                           const __grid_constant__ CUtensorMap query_map) {
  using W = WideFp8<Format>;
  if (left_to_another(p)) return;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const WideFp8Shared<Format> s{shared_address(shared_bytes)};
  const typename W::Ring ring = s.ring();
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), kQueryArrivals);
    barrier_init(s.q_empty(), 384);
    barrier_init(s.voted(), 128);
    barrier_init(s.outputs_full(), 128);
    barrier_init(s.outputs_empty(), 256);
    ring.init(256);
    for (unsigned b = 0; b < W::Ring::kBuffers; ++b) {
      barrier_init(s.weighed(b), 128 + 32);  // weights, and values' scales
      barrier_init(s.scored(b), 128);
      store_shared_u32(s.risen(b), 0);
    }
    barriers_visible();
  }
  sync_block();
  // By shuffle(), as the compiler then knows that a warp's threads go the same way.
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == 3) {
    lower_registers<W::kFillRegisters>();
    const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.tiles;
    const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.tiles;
    if (thread < 64) {
      copy_rows<Format>(ring, p.once, W::Ring::kBuffers, thread / 32, thread % 32);
    } else if (thread < 96) {
      // For values, which take them as f16.
      const auto tell_scales = [&](unsigned n) {
        barrier_wait(ring.full(n), W::Ring::parity(n));
        LATHE_ROLLED
        for (int warp = 0; warp < 4; ++warp) {
          make_scales<Format>(ring.keys(n), s.scales(n), warp, thread - 64);
        }
        barrier_arrive(s.weighed(n));
      };
      tell_items<Format, W::kLines, 1>(p, &query_map, s.q, s.facts(), s.q_full(), s.q_empty(),
                                       worker, tile, thread - 64, tell_scales);
    } else {
      LatentNamer<Format, W::kLines, 1>(p, ring.names, worker, tile, thread - 96).run();
      write_keyless(p, thread - 96);
    }
  } else if (group == 2) {
    lower_registers<W::kScoreRegisters>();
    WideFp8Scores<Format>(p, s, thread).run();
  } else {
    raise_registers<W::kValueRegisters>();
    WideFp8Values<Format>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
