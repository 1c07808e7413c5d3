// Launches the sampler, with a cluster per row, and the copy of sampled tokens to the next step's
// input.
#include "kernels/cuda/sm90/sampling/sampling.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

std::int32_t blocks_of_row(std::int32_t workers, std::int64_t vocab) {
  std::int32_t blocks = workers <= 12 ? 8 : workers <= 32 ? 4 : workers <= 64 ? 2 : 1;
  while (blocks > padded_vocab(vocab) / kSumBlock) blocks /= 2;
  return blocks;
}

cudaError_t launch_sample(const SampleParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  if (padded_vocab(p.vocab) / kSumBlock > kMostSumBlocks) return cudaErrorInvalidValue;
  return launch_kernel(sample_kernel,
                       {.grid = static_cast<unsigned>(p.workers * p.blocks),
                        .block = kSampleThreads,
                        .shared_bytes = sizeof(SampleShared),
                        .cluster = p.blocks,
                        .early = true},
                       stream, p);
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
