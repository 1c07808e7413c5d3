// Launches the sampler, with a block per row, and the copy of sampled tokens to the next step's
// input.
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

cudaError_t launch_take_drawn(const TakeDrawnParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return launch_kernel(
      take_drawn_kernel,
      {.grid = blocks_for(p.count, kSampleThreads), .block = kSampleThreads, .early = true}, stream,
      p);
}

cudaError_t launch_place_draws(const PlaceDrawsParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return launch_kernel(
      place_draws_kernel,
      {.grid = blocks_for(p.count, kSampleThreads), .block = kSampleThreads, .early = true}, stream,
      p);
}

}  // namespace lathe::cuda
