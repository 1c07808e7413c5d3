// What an instance of the wide kernel consists of.
#pragma once

#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_wide.cuh"

namespace lathe::cuda {

template <class Format>
cudaError_t launch_wide(const LatentParams& p, cudaStream_t stream) {
  using W = LatentWide<Format>;
  const cudaError_t status = cudaFuncSetAttribute(
      latent_wide_kernel<Format>, cudaFuncAttributeMaxDynamicSharedMemorySize, W::kSharedBytes);
  if (status != cudaSuccess) return status;
  latent_wide_kernel<Format>
      <<<static_cast<unsigned>(p.workers * p.tiles), W::kThreads, W::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
