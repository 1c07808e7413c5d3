// What an instance of the narrow kernel consists of.
#pragma once

#include "kernels/cuda/common/shared_limit.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/load/page_map.h"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_bf16.cuh"

namespace lathe::cuda {

template <class Format, int kTileLines, bool kPages>
cudaError_t launch_narrow_fill(const LatentParams& p, const CUtensorMap& map, cudaStream_t stream) {
  using N = LatentNarrow<Format, kTileLines, kPages>;
  constexpr auto kernel = latent_narrow_kernel<Format, kTileLines, kPages>;
  const cudaError_t status = allow_shared<kernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(p.workers), N::kThreads, N::kSharedBytes, stream>>>(p, map);
  return cudaGetLastError();
}

template <class Format, int kTileLines>
cudaError_t launch_narrow_lines(const LatentParams& p, cudaStream_t stream) {
  CUtensorMap map{};
  if (has_boxes(p)) {
    const cudaError_t status = make_key_map(map, p, Format::kRowBytes);
    if (status != cudaSuccess) return status;
    return launch_narrow_fill<Format, kTileLines, true>(p, map, stream);
  }
  return launch_narrow_fill<Format, kTileLines, false>(p, map, stream);
}

template <class Format>
cudaError_t launch_narrow(const LatentParams& p, int tile_lines, cudaStream_t stream) {
  if (tile_lines == 8) return launch_narrow_lines<Format, 8>(p, stream);
  if (tile_lines == 16) return launch_narrow_lines<Format, 16>(p, stream);
  return launch_narrow_lines<Format, 32>(p, stream);
}

}  // namespace lathe::cuda
