#include "kernels/cuda/sm90/matmul/quantize.cuh"

#include "kernels/cuda/common/early_launch.h"

cudaError_t lathe::cuda::launch_quantize_rows(const QuantizeParams& p, cudaStream_t stream) {
  constexpr std::int64_t kThreads = 128;
  cudaLaunchAttribute early = early_launch();
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((p.rows * p.blocks * 32 + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, quantize_rows_kernel, p);
}
