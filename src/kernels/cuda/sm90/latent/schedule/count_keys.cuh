// The keys of each unit, for the work list.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

static __global__ void latent_count_kernel(const __grid_constant__ LatentParams p,
                                           std::int32_t most, std::int32_t* keys /* [units] */) {
  const auto unit = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (unit >= p.units) return;
  const LatentUnitPlace u = unit_place(p, unit);
  const std::int32_t all = u.lines <= 0 ? 0 : u.extra > 0 ? u.padded + u.extra : u.keys;
  keys[unit] = all < 0 ? 0 : all < most ? all : most;
}

}  // namespace lathe::cuda
