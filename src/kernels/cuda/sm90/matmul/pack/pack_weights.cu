// Launches the kernels that pack 4-bit weights.
#include "kernels/cuda/sm90/matmul/pack/pack_weights.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_pack_codes(const PackCodes& p, cudaStream_t stream) {
  if (p.units == 0) return cudaSuccess;
  return launch_kernel(pack_codes_kernel,
                       {.grid = blocks_for(p.units, kPackThreads), .block = kPackThreads}, stream,
                       p);
}

cudaError_t launch_pack_scales(const PackScales& p, cudaStream_t stream) {
  const std::int64_t count = p.weights * packed_groups(p.rows, p.cols, p.size).count();
  if (count == 0) return cudaSuccess;
  return launch_kernel(pack_scales_kernel,
                       {.grid = blocks_for(count, kPackThreads), .block = kPackThreads}, stream, p);
}

}  // namespace lathe::cuda
