// Launches the kernels that list the keys of a pass.
#include "kernels/cuda/sm90/ragged/keys/ragged_keys.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/ragged/ragged_kernels.h"

cudaError_t lathe::cuda::launch_ragged_bases(const RaggedParams& p, cudaStream_t stream) {
  return launch_kernel(ragged_bases_kernel, {.block = kGqaScheduleThreads}, stream, p);
}

cudaError_t lathe::cuda::launch_ragged_slots(const RaggedParams& p, cudaStream_t stream) {
  if (p.keys == 0) return cudaSuccess;
  return launch_kernel(
      ragged_slots_kernel,
      {.grid = blocks_for(p.keys, kRaggedSlotThreads), .block = kRaggedSlotThreads, .early = true},
      stream, p);
}
