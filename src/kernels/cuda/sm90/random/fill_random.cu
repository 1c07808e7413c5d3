// Launches the kernel that fills weights.
#include "kernels/cuda/sm90/random/fill_random.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_fill_random(const FillRandomParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  const LaunchShape shape{.grid = blocks_for(p.count, 4 * kFillThreads), .block = kFillThreads};
  switch (p.dtype) {
    case DType::f32:
      return launch_kernel(fill_random_kernel<DType::f32>, shape, stream, p);
    case DType::bf16:
      return launch_kernel(fill_random_kernel<DType::bf16>, shape, stream, p);
    case DType::e4m3:
      return launch_kernel(fill_random_kernel<DType::e4m3>, shape, stream, p);
    case DType::e2m1:
      return launch_kernel(fill_random_kernel<DType::e2m1>, shape, stream, p);
    case DType::u4:
      return launch_kernel(fill_random_kernel<DType::u4>, shape, stream, p);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace lathe::cuda
