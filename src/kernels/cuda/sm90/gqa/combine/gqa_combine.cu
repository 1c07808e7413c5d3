#include "kernels/cuda/sm90/gqa/combine/gqa_combine.cuh"

#include "kernels/cuda/common/early_launch.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"

cudaError_t lathe::cuda::launch_gqa_combine(const GqaParams& p, std::int32_t head_dim,
                                            cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  const auto chunks = static_cast<unsigned>(p.block_m * head_dim / 4);
  config.gridDim = dim3(static_cast<unsigned>(p.workers),
                        (chunks + kGqaCombineThreads - 1) / kGqaCombineThreads);
  config.blockDim = kGqaCombineThreads;
  config.stream = stream;
  cudaLaunchAttribute early = early_launch();
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, gqa_combine_kernel, p, head_dim);
}
