// Launches the kernel that counts the keys of each work tile, for the work list.
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/schedule/count_keys.cuh"

namespace lathe::cuda {
cudaError_t launch_latent_count(const LatentParams& p, std::int64_t most, std::int32_t* keys,
                                cudaStream_t stream) {
  if (p.work_tiles == 0) return cudaSuccess;
  const auto bound = static_cast<std::int32_t>(most < INT32_MAX ? most : INT32_MAX);
  constexpr int kThreads = 128;
  return launch_kernel(latent_count_kernel,
                       {.grid = blocks_for(p.work_tiles, kThreads), .block = kThreads}, stream, p,
                       bound, keys);
}

}  // namespace lathe::cuda
