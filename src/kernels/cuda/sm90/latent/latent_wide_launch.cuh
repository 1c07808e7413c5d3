// What an instance of the wide kernel consists of.
#pragma once

#include "kernels/cuda/common/shared_limit.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_page_map.h"
#include "kernels/cuda/sm90/latent/latent_wide.cuh"

namespace lathe::cuda {

template <class Format, bool kPages>
cudaError_t launch_wide_fill(const LatentParams& p, const CUtensorMap& map, cudaStream_t stream) {
  using W = LatentWide<Format, kPages>;
  constexpr auto kernel = latent_wide_kernel<Format, kPages>;
  const cudaError_t status = allow_shared<kernel>(W::kSharedBytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(p.workers * p.tiles), W::kThreads, W::kSharedBytes, stream>>>(p,
                                                                                               map);
  return cudaGetLastError();
}

template <class Format>
cudaError_t launch_wide(const LatentParams& p, cudaStream_t stream) {
  CUtensorMap map{};
  if constexpr (Format::kFp8 == 0) {
    if (has_boxes(p)) {
      const cudaError_t status = make_key_map(map, p, Format::kRowBytes);
      if (status != cudaSuccess) return status;
      return launch_wide_fill<Format, true>(p, map, stream);
    }
  }
  return launch_wide_fill<Format, false>(p, map, stream);
}

}  // namespace lathe::cuda
