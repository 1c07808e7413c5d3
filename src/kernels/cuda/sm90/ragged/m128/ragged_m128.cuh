// Attention over expanded keys and values: the consumers of gqa_m128.cuh with tiles from the arrays
// of a pass.
#pragma once

#include <cuda.h>

#include "kernels/cuda/sm90/gqa/m128/gqa_m128.cuh"
#include "kernels/cuda/sm90/ragged/m128/ragged_load.cuh"

namespace lathe::cuda {

template <int kKeyDim, int kValueDim>
static __global__ void __launch_bounds__(GqaM128<kKeyDim, kValueDim>::kThreads, 1)
    ragged_m128_kernel(const __grid_constant__ RaggedParams p,
                       const __grid_constant__ CUtensorMap expanded,
                       const __grid_constant__ CUtensorMap latents) {
  using N = GqaM128<kKeyDim, kValueDim>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const std::uint32_t base = shared_address(shared_bytes);
  const GqaRing<N> ring(base + N::kRingAt, base + N::kSmallAt);
  const GqaQueries<N> queries(base, base + N::kQueryBarriersAt);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = warp_value(thread / 32);
  if (thread == 0) {
    queries.init();
    ring.init();
  }
  sync_block();
  wait_for_previous();
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (warp >= 4 * N::kGroups) {
    lower_registers<N::kProducerRegisters>();
    const int role = warp - 4 * N::kGroups;
    if (role == 0) {
      RaggedProducer<N>(p, ring, &expanded, &latents).run(worker);
    } else if (role <= N::kCheckWarps) {
      GqaChecker<N>{p.gqa, ring, role - 1, thread % 32}.run(worker);
    } else {
      GqaQueryProducer<N>{p.gqa, queries, thread % 32}.run(worker);
    }
  } else {
    raise_registers<N::kConsumerRegisters>();
    GqaM128Group<N>(p.gqa, ring, queries, warp / 4, warp % 4, thread % 32).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
