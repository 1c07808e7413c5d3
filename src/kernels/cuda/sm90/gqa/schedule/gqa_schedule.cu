#include "kernels/cuda/sm90/gqa/schedule/gqa_schedule.cuh"

#include "kernels/cuda/sm90/gqa/gqa_kernels.h"

cudaError_t lathe::cuda::launch_gqa_schedule(const GqaParams& p, cudaStream_t stream) {
  gqa_schedule_kernel<<<1, kGqaScheduleThreads, 0, stream>>>(p);
  return cudaGetLastError();
}
