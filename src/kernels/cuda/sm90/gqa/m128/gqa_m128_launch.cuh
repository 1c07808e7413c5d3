// Launches an instance of gqa_m128.
#pragma once

#include "kernels/cuda/sm90/gqa/gqa_instances.h"
#include "kernels/cuda/sm90/gqa/load/gqa_launch_kernel.cuh"
#include "kernels/cuda/sm90/gqa/m128/gqa_m128.cuh"

namespace lathe::cuda {

template <int kHeadDim, int kValueDim>
cudaError_t launch_gqa_m128(const GqaParams& p, cudaStream_t stream) {
  return launch_gqa_kernel<GqaM128<kHeadDim, kValueDim>, gqa_m128_kernel<kHeadDim, kValueDim>>(
      p, stream);
}

template <int kKeyDim, int kValueDim>
cudaError_t launch_gqa_rows_m128(const GqaParams& p, cudaStream_t stream) {
  return launch_gqa_kernel<GqaM128<kKeyDim, kValueDim, true>,
                           gqa_m128_kernel<kKeyDim, kValueDim, true>>(p, stream);
}

}  // namespace lathe::cuda
