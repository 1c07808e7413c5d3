// Launches the instances of gqa_m128 for a head dim.
#pragma once

#include "kernels/cuda/sm90/gqa/gqa_instances.h"
#include "kernels/cuda/sm90/gqa/load/gqa_launch_kernel.cuh"
#include "kernels/cuda/sm90/gqa/m128/gqa_m128.cuh"

namespace lathe::cuda {

template <int kHeadDim, int kValueDim, bool kOneRow>
cudaError_t launch_m128_block_m(const GqaParams& p, cudaStream_t stream) {
  if constexpr (gqa_rows_on_m(kHeadDim, 64, false)) {
    if (p.block_m == 64) {
      return launch_gqa_kernel<GqaM128<kHeadDim, kValueDim, kOneRow, 64>,
                               gqa_m128_kernel<kHeadDim, kValueDim, kOneRow, 64>>(p, stream);
    }
  }
  return launch_gqa_kernel<GqaM128<kHeadDim, kValueDim, kOneRow>,
                           gqa_m128_kernel<kHeadDim, kValueDim, kOneRow>>(p, stream);
}

template <int kHeadDim, int kValueDim>
cudaError_t launch_gqa_m128(const GqaParams& p, cudaStream_t stream) {
  return launch_m128_block_m<kHeadDim, kValueDim, false>(p, stream);
}

template <int kKeyDim, int kValueDim>
cudaError_t launch_gqa_rows_m128(const GqaParams& p, cudaStream_t stream) {
  return launch_m128_block_m<kKeyDim, kValueDim, true>(p, stream);
}

}  // namespace lathe::cuda
