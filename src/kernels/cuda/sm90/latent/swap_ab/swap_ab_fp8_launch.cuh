// What an instance of the kernel for few lines and fp8 caches consists of.
#pragma once

#include "kernels/cuda/common/shared_limit.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/load/query_map.h"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_fp8.cuh"

namespace lathe::cuda {

template <class Format, int kTileLines>
cudaError_t launch_narrow_fp8_lines(const LatentParams& p, cudaStream_t stream) {
  using N = NarrowFp8<Format, kTileLines>;
  constexpr auto kernel = latent_narrow_fp8_kernel<Format, kTileLines>;
  const cudaError_t status = allow_shared<kernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  CUtensorMap map{};
  const cudaError_t made = make_query_map<kTileLines, kDimTiles<Format>>(map, p);
  if (made != cudaSuccess) return made;
  kernel<<<static_cast<unsigned>(p.workers * p.tiles), N::kThreads, N::kSharedBytes, stream>>>(p,
                                                                                               map);
  return cudaGetLastError();
}

template <class Format>
cudaError_t launch_narrow_fp8(const LatentParams& p, int tile_lines, cudaStream_t stream) {
  if (tile_lines == 8) return launch_narrow_fp8_lines<Format, 8>(p, stream);
  if (tile_lines == 16) return launch_narrow_fp8_lines<Format, 16>(p, stream);
  return launch_narrow_fp8_lines<Format, 32>(p, stream);
}

}  // namespace lathe::cuda
