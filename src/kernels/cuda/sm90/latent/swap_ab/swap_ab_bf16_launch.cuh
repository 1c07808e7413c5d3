// Launches an instance of swap_ab on bf16.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/load/page_map.h"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_bf16.cuh"

namespace lathe::cuda {

template <class Format, int kBlockM, bool kPages>
cudaError_t launch_swap_ab_instance(const LatentParams& p, const CUtensorMap& map,
                                    cudaStream_t stream) {
  using N = LatentSwapAb<Format, kBlockM, kPages>;
  constexpr auto kernel = latent_swap_ab_kernel<Format, kBlockM, kPages>;
  const cudaError_t status = allow_shared<kernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(p.workers),
                        .block = N::kThreads,
                        .shared_bytes = N::kSharedBytes},
                       stream, p, map);
}

template <class Format, int kBlockM>
cudaError_t launch_swap_ab_m(const LatentParams& p, cudaStream_t stream) {
  CUtensorMap map{};
  if (has_boxes(p)) {
    const cudaError_t status = make_key_map(map, p, Format::kRowBytes);
    if (status != cudaSuccess) return status;
    return launch_swap_ab_instance<Format, kBlockM, true>(p, map, stream);
  }
  return launch_swap_ab_instance<Format, kBlockM, false>(p, map, stream);
}

template <class Format>
cudaError_t launch_swap_ab(const LatentParams& p, int block_m, cudaStream_t stream) {
  if (block_m == 8) return launch_swap_ab_m<Format, 8>(p, stream);
  if (block_m == 16) return launch_swap_ab_m<Format, 16>(p, stream);
  return launch_swap_ab_m<Format, 32>(p, stream);
}

}  // namespace lathe::cuda
