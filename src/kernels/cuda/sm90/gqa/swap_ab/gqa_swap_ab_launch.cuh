// Launches the instances of gqa_swap_ab for a head dim and a format.
#pragma once

#include "kernels/cuda/sm90/gqa/gqa_instances.h"
#include "kernels/cuda/sm90/gqa/load/gqa_launch_kernel.cuh"
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab.cuh"

namespace lathe::cuda {

template <int kHeadDim, bool kFp8, int kBlockM, int kValueDim = kHeadDim, bool kOneRow = false>
cudaError_t launch_swap_ab_block_m(const GqaParams& p, cudaStream_t stream) {
  return launch_gqa_kernel<GqaSwapAb<kHeadDim, kBlockM, kFp8, kValueDim, kOneRow>,
                           gqa_swap_ab_kernel<kHeadDim, kBlockM, kFp8, kValueDim, kOneRow>>(p,
                                                                                            stream);
}

template <int kKeyDim, int kValueDim>
cudaError_t launch_gqa_rows_swap_ab(const GqaParams& p, cudaStream_t stream) {
  switch (p.block_m) {
    case 8:
      return launch_swap_ab_block_m<kKeyDim, false, 8, kValueDim, true>(p, stream);
    case 16:
      return launch_swap_ab_block_m<kKeyDim, false, 16, kValueDim, true>(p, stream);
    default:
      return launch_swap_ab_block_m<kKeyDim, false, 32, kValueDim, true>(p, stream);
  }
}

template <int kHeadDim, bool kFp8, int kValueDim>
cudaError_t launch_gqa_swap_ab(const GqaParams& p, cudaStream_t stream) {
  constexpr auto kHere = [](int block_m) {
    return !kFp8 || !gqa_is_mma_fp8(kHeadDim, kValueDim, block_m);
  };
  switch (p.block_m) {
    case 8:
      if constexpr (kHere(8)) {
        return launch_swap_ab_block_m<kHeadDim, kFp8, 8, kValueDim>(p, stream);
      }
      return cudaErrorInvalidValue;
    case 16:
      if constexpr (kHere(16)) {
        return launch_swap_ab_block_m<kHeadDim, kFp8, 16, kValueDim>(p, stream);
      }
      return cudaErrorInvalidValue;
    case 32:
      if constexpr (kHere(32)) {
        return launch_swap_ab_block_m<kHeadDim, kFp8, 32, kValueDim>(p, stream);
      }
      return cudaErrorInvalidValue;
    default:
      if constexpr (gqa_swaps_64(kHeadDim, kValueDim, kFp8)) {
        return launch_swap_ab_block_m<kHeadDim, kFp8, 64, kValueDim>(p, stream);
      }
      return cudaErrorInvalidValue;
  }
}

}  // namespace lathe::cuda
