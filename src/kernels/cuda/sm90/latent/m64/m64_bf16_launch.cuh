// Launches an instance of m64 on bf16.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/load/page_map.h"
#include "kernels/cuda/sm90/latent/load/query_map.h"
#include "kernels/cuda/sm90/latent/m64/m64_bf16.cuh"

namespace lathe::cuda {

template <class Format, bool kPages, int kBlocks>
cudaError_t launch_m64_instance(const LatentParams& p, const CUtensorMap& map,
                                const CUtensorMap& out_map, cudaStream_t stream) {
  using W = LatentM64<Format, kPages, kBlocks>;
  constexpr auto kernel = latent_m64_kernel<Format, kPages, kBlocks>;
  const cudaError_t status = allow_shared<kernel>(W::kSharedBytes);
  if (status != cudaSuccess) return status;
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(p.workers * p.m_blocks),
                        .block = W::kThreads,
                        .shared_bytes = W::kSharedBytes,
                        .cluster = kBlocks,
                        .early = kBlocks == 1 && p.early != 0},
                       stream, p, map, out_map);
}

template <class Format>
cudaError_t launch_m64(const LatentParams& p, cudaStream_t stream) {
  CUtensorMap map{}, out_map{};
  const cudaError_t made = make_out_map(out_map, p);
  if (made != cudaSuccess) return made;
  if (has_boxes(p)) {
    const cudaError_t status = make_key_map(map, p, Format::kRowBytes);
    if (status != cudaSuccess) return status;
    return p.m_blocks % 2 == 0 ? launch_m64_instance<Format, true, 2>(p, map, out_map, stream)
                               : launch_m64_instance<Format, true, 1>(p, map, out_map, stream);
  }
  const cudaError_t status = make_query_map<64, kDimTiles<Format>>(map, p);
  if (status != cudaSuccess) return status;
  return launch_m64_instance<Format, false, 1>(p, map, out_map, stream);
}

}  // namespace lathe::cuda
