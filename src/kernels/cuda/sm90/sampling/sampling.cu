// Launches the sampler, a block per row.
#include "kernels/cuda/sm90/sampling/sampling.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_sample(const SampleParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  if (padded_vocab(p.vocab) / kSumBlock > kMostSumBlocks) return cudaErrorInvalidValue;
  return launch_kernel(
      sample_kernel,
      {.grid = static_cast<unsigned>(p.workers), .block = kSampleThreads, .early = true}, stream,
      p);
}

}  // namespace lathe::cuda
