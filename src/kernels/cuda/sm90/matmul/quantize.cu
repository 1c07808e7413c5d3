// Launches the kernel that quantizes rows to e4m3.
#include "kernels/cuda/sm90/matmul/quantize.cuh"

#include "kernels/cuda/common/launch.h"

cudaError_t lathe::cuda::launch_quantize_rows(const QuantizeParams& p, cudaStream_t stream) {
  constexpr int kThreads = 128;
  return launch_kernel(
      quantize_rows_kernel,
      {.grid = blocks_for(p.rows * p.blocks * 32, kThreads), .block = kThreads, .early = true},
      stream, p);
}
