// Launches the kernel that makes the work list of grouped-query attention.
#include "kernels/cuda/sm90/gqa/schedule/gqa_schedule.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"

cudaError_t lathe::cuda::launch_gqa_schedule(const GqaParams& p, cudaStream_t stream) {
  return launch_kernel(gqa_schedule_kernel, {.block = kGqaScheduleThreads}, stream, p);
}
