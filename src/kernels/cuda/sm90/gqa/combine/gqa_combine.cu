// Launches the combination of partials of grouped-query attention.
#include "kernels/cuda/sm90/gqa/combine/gqa_combine.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"

cudaError_t lathe::cuda::launch_gqa_combine(const GqaParams& p, std::int32_t head_dim,
                                            cudaStream_t stream) {
  const unsigned chunks = blocks_for(p.block_m * head_dim / 4, kGqaCombineThreads);
  return launch_kernel(gqa_combine_kernel,
                       {.grid = dim3(static_cast<unsigned>(p.workers), chunks),
                        .block = kGqaCombineThreads,
                        .early = true},
                       stream, p, head_dim);
}
