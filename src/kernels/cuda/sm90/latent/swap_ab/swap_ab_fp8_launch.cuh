// Launches an instance of swap_ab on fp8.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/load/query_map.h"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_fp8.cuh"

namespace lathe::cuda {

template <class Format, int kBlockM>
cudaError_t launch_swap_ab_fp8_m(const LatentParams& p, cudaStream_t stream) {
  using N = SwapAbFp8<Format, kBlockM>;
  constexpr auto kernel = latent_swap_ab_fp8_kernel<Format, kBlockM>;
  const cudaError_t status = allow_shared<kernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  CUtensorMap map{};
  const cudaError_t made = make_query_map<kBlockM, kDimTiles<Format>>(map, p);
  if (made != cudaSuccess) return made;
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(p.workers * p.m_blocks),
                        .block = N::kThreads,
                        .shared_bytes = N::kSharedBytes},
                       stream, p, map);
}

template <class Format>
cudaError_t launch_swap_ab_fp8(const LatentParams& p, int block_m, cudaStream_t stream) {
  if (block_m == 8) return launch_swap_ab_fp8_m<Format, 8>(p, stream);
  if (block_m == 16) return launch_swap_ab_fp8_m<Format, 16>(p, stream);
  return launch_swap_ab_fp8_m<Format, 32>(p, stream);
}

}  // namespace lathe::cuda
