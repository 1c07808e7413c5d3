// Launches the join of the parts of requests that share keys.
#include "kernels/cuda/sm90/gqa/combine/gqa_join.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"

cudaError_t lathe::cuda::launch_gqa_join(const GqaJoin& p, cudaStream_t stream) {
  const std::int64_t heads = std::int64_t{p.requests.kv_heads} * p.requests.group.divisor;
  const unsigned chunks = blocks_for(heads * p.value_dim / 4, kGqaJoinThreads);
  return launch_kernel(gqa_join_kernel,
                       {.grid = dim3(static_cast<unsigned>(p.rows), chunks),
                        .block = kGqaJoinThreads,
                        .early = true},
                       stream, p);
}
