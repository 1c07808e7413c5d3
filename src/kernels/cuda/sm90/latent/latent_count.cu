// The keys of each unit, for the work list.
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_unit.cuh"

namespace lathe::cuda {
namespace {

__global__ void latent_count_kernel(const __grid_constant__ LatentParams p,
                                    std::int32_t* keys /* [units] */) {
  const auto unit = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (unit >= p.units) return;
  const LatentUnitPlace u = unit_place(p, unit);
  keys[unit] = u.lines == 0 ? 0 : u.extra > 0 ? u.padded + u.extra : u.keys;
}

}  // namespace

cudaError_t launch_latent_count(const LatentParams& p, std::int32_t* keys, cudaStream_t stream) {
  if (p.units == 0) return cudaSuccess;
  latent_count_kernel<<<(static_cast<unsigned>(p.units) + 127) / 128, 128, 0, stream>>>(p, keys);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
