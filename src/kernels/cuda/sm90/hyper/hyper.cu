// Launches the kernels of hyper-connections.
#include "kernels/cuda/sm90/hyper/hyper.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm_after_launch.cuh"

namespace lathe::cuda {

cudaError_t launch_hyper_mix(const HyperMixParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.norm.h.data != nullptr) {
    return launch_norm_after<1>(hyper_mix_kernel<true>, p.rows, stream, p);
  }
  return launch_kernel(hyper_mix_kernel<false>,
                       {.grid = static_cast<unsigned>(p.rows), .block = kMixThreads, .early = true},
                       stream, p);
}

cudaError_t launch_hyper_add(const HyperAddParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.rows), blocks_for(p.n, kHyperWord * kHyperAddThreads));
  return launch_kernel(hyper_add_kernel, {.grid = grid, .block = kHyperAddThreads, .early = true},
                       stream, p);
}

}  // namespace lathe::cuda
