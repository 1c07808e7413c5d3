// The keys of each unit, for the work list.
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_unit.cuh"

namespace lathe::cuda {
namespace {

__global__ void latent_count_kernel(const __grid_constant__ LatentParams p, std::int32_t most,
                                    std::int32_t* keys /* [units] */) {
  const auto unit = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (unit >= p.units) return;
  const LatentUnitPlace u = unit_place(p, unit);
  const std::int32_t all = u.lines <= 0 ? 0 : u.extra > 0 ? u.padded + u.extra : u.keys;
  keys[unit] = all < 0 ? 0 : all < most ? all : most;
}

}  // namespace

cudaError_t launch_latent_count(const LatentParams& p, std::int64_t most, std::int32_t* keys,
                                cudaStream_t stream) {
  if (p.units == 0) return cudaSuccess;
  const auto bound = static_cast<std::int32_t>(most < INT32_MAX ? most : INT32_MAX);
  latent_count_kernel<<<(static_cast<unsigned>(p.units) + 127) / 128, 128, 0, stream>>>(p, bound,
                                                                                        keys);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
