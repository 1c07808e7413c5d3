// Launches the kernel that permutes columns.
#include "kernels/cuda/sm90/matmul/pack/permute_columns.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_permute_columns(const PermuteColumns& p, cudaStream_t stream) {
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  return launch_kernel(permute_columns_kernel,
                       {.grid = blocks_for(p.rows * (p.cols / 8), kPermuteThreads),
                        .block = kPermuteThreads,
                        .early = true},
                       stream, p);
}

}  // namespace lathe::cuda
