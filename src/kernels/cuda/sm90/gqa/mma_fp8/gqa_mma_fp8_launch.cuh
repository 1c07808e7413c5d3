// Launches the instances of gqa_mma_fp8 for a head dim.
#pragma once

#include "kernels/cuda/sm90/gqa/gqa_instances.h"
#include "kernels/cuda/sm90/gqa/load/gqa_launch_kernel.cuh"
#include "kernels/cuda/sm90/gqa/mma_fp8/gqa_mma_fp8.cuh"

namespace lathe::cuda {

template <int kHeadDim, int kHeads, int kMRows>
cudaError_t launch_mma_fp8_rows(const GqaParams& p, cudaStream_t stream) {
  if constexpr (gqa_is_mma_fp8(kHeadDim, kHeadDim, kMRows)) {
    return launch_gqa_kernel<GqaMmaFp8<kHeadDim, kMRows, kHeads>,
                             gqa_mma_fp8_kernel<kHeadDim, kMRows, kHeads>>(p, stream);
  }
  return cudaErrorInvalidValue;
}

template <int kHeadDim, int kHeads>
cudaError_t launch_gqa_mma_fp8(const GqaParams& p, cudaStream_t stream) {
  switch (p.block_m / kHeads) {
    case 8:
      return launch_mma_fp8_rows<kHeadDim, kHeads, 8>(p, stream);
    case 16:
      return launch_mma_fp8_rows<kHeadDim, kHeads, 16>(p, stream);
    default:
      return launch_mma_fp8_rows<kHeadDim, kHeads, 32>(p, stream);
  }
}

}  // namespace lathe::cuda
