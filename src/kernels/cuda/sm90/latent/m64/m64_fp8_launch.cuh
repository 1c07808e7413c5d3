// Launches an instance of m64 on fp8.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/load/query_map.h"
#include "kernels/cuda/sm90/latent/m64/m64_fp8.cuh"

namespace lathe::cuda {

template <class Format>
cudaError_t launch_m64_fp8(const LatentParams& p, cudaStream_t stream) {
  using W = M64Fp8<Format>;
  constexpr auto kernel = latent_m64_fp8_kernel<Format>;
  const cudaError_t status = allow_shared<kernel>(W::kSharedBytes);
  if (status != cudaSuccess) return status;
  CUtensorMap map{};
  const cudaError_t made = make_query_map<W::kMRows, kDimTiles<Format>>(map, p);
  if (made != cudaSuccess) return made;
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(p.workers * p.m_blocks),
                        .block = W::kThreads,
                        .shared_bytes = W::kSharedBytes},
                       stream, p, map);
}

}  // namespace lathe::cuda
