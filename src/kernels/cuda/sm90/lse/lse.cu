// Launches the kernel that rewrites LSEs.
#include "kernels/cuda/sm90/lse/lse.h"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/lse/lse.cuh"

namespace lathe::cuda {

cudaError_t launch_convert_lse(const ConvertLse& p, cudaStream_t stream) {
  const std::int64_t count = p.rows * p.heads;
  if (count == 0) return cudaSuccess;
  return launch_kernel(
      convert_lse_kernel,
      {.grid = blocks_for(count, kLseThreads), .block = kLseThreads, .early = true}, stream, p);
}

}  // namespace lathe::cuda
