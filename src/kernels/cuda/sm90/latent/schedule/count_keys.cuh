// Counts the keys of each work tile, for the work list.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

static __global__ void latent_count_kernel(const __grid_constant__ LatentParams p,
                                           std::int32_t most,
                                           std::int32_t* keys /* [work_tiles] */) {
  const auto work_tile = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (work_tile >= p.work_tiles) return;
  const std::int32_t all = keys_of(find_work_tile(p, work_tile));
  keys[work_tile] = all < most ? all : most;
}

}  // namespace lathe::cuda
