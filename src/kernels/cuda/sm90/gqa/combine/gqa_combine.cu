// Launches the combination of partials of grouped-query attention.
#include "kernels/cuda/sm90/gqa/combine/gqa_combine.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"

cudaError_t lathe::cuda::launch_gqa_combine(const GqaParams& p, std::int32_t head_dim,
                                            cudaStream_t stream) {
  if (p.pieces == 1) return cudaSuccess;
  const unsigned chunks = blocks_for(p.block_m * head_dim / 4, kGqaCombineThreads);
  const auto items = static_cast<unsigned>(p.pieces > 0 ? p.requests * p.kv_heads : p.workers);
  return launch_kernel(
      p.pieces > 0 ? gqa_combine_kernel<GqaPieces> : gqa_combine_kernel<GqaCutItem>,
      {.grid = dim3(items, chunks), .block = kGqaCombineThreads, .early = true}, stream, p,
      head_dim);
}
