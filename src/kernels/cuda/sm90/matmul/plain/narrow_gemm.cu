// Launches the narrow GEMM and the sum of its slices.
#include "kernels/cuda/sm90/matmul/plain/narrow_gemm.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_narrow_slices(const NarrowGemm& p, cudaStream_t stream) {
  if (p.rows == 0 || p.outputs == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(narrow_slices(p)), blocks_for(p.rows, kNarrowRows));
  return launch_kernel(narrow_gemm_kernel, {.grid = grid, .block = kNarrowThreads, .early = true},
                       stream, p);
}

cudaError_t launch_narrow_sum(const NarrowGemm& p, cudaStream_t stream) {
  if (p.rows == 0 || p.outputs == 0) return cudaSuccess;
  return launch_kernel(narrow_sum_kernel,
                       {.grid = blocks_for(p.rows * p.outputs, kNarrowSumOutputs),
                        .block = kNarrowSumThreads,
                        .early = true},
                       stream, p, narrow_slices(p));
}

}  // namespace lathe::cuda
