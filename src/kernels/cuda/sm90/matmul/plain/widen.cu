// Launches the kernel that widens packed weights.
#include "kernels/cuda/sm90/matmul/plain/widen.cuh"

#include "kernels/cuda/common/launch.h"

cudaError_t lathe::cuda::launch_widen(const WidenWeights& p, cudaStream_t stream) {
  if (p.rows == 0 || p.count == 0) return cudaSuccess;
  const dim3 grid(blocks_for(p.rows * (p.w.cols / 8), kWidenThreads),
                  static_cast<unsigned>(p.count));
  const cudaError_t status =
      launch_kernel(widen_kernel, {.grid = grid, .block = kWidenThreads, .early = true}, stream, p);
  if (status != cudaSuccess) return status;
  return launch_kernel(after_widen_kernel, {.grid = 1, .block = 32}, stream, std::int32_t{0});
}
