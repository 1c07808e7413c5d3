// What an instance of the narrow kernel consists of.
#pragma once

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_narrow.cuh"

namespace lathe::cuda {

template <class Format, int kTileLines, bool kPages>
cudaError_t launch_narrow_fill(const LatentParams& p, const CUtensorMap& map, cudaStream_t stream) {
  using N = LatentNarrow<Format, kTileLines, kPages>;
  const auto kernel = latent_narrow_kernel<Format, kTileLines, kPages>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, N::kSharedBytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(p.workers), N::kThreads, N::kSharedBytes, stream>>>(p, map);
  return cudaGetLastError();
}

template <class Format, int kTileLines>
cudaError_t launch_narrow_lines(const LatentParams& p, cudaStream_t stream) {
  CUtensorMap map{};
  if constexpr (Format::kFp8 == 0) {
    if (has_boxes(p)) {
      const cudaError_t status = make_page_map(map, {.base = p.main.pages,
                                                     .pages = p.main.pages_count,
                                                     .page_stride = p.main.page_stride,
                                                     .page_rows = p.main.page_size.divisor,
                                                     .row_bytes = Format::kRowBytes,
                                                     .box_rows = box_rows(p)});
      if (status != cudaSuccess) return status;
      return launch_narrow_fill<Format, kTileLines, true>(p, map, stream);
    }
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
