// Launches the kernel that shares work tiles among workers.
#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/schedule/share_fixed.cuh"
#include "kernels/cuda/sm90/latent/schedule/share_work.cuh"

namespace lathe::cuda {

cudaError_t launch_latent_share(const LatentParams& p, const LatentSharing& to,
                                cudaStream_t stream) {
  const int threads =
      std::min(std::max((p.work_tiles + 31) / 32 * 32, kShareWorkers + 1), kShareTiles);
  return launch_kernel(to.fixed > 0 ? latent_share_fixed_kernel : latent_share_kernel,
                       {.block = static_cast<unsigned>(threads)}, stream, p, to);
}

}  // namespace lathe::cuda
