// Launches an instance of a grouped-query kernel.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/gqa/load/gqa_load_pages.cuh"

namespace lathe::cuda {

template <class N>
cudaError_t make_gqa_map(CUtensorMap& map, const GqaParams& p, const std::byte* base) {
  if (p.pages == 0) return cudaSuccess;  // nothing is copied
  return make_page_map(map, {.base = base,
                             .pages = p.pages,
                             .page_stride = p.page_stride,
                             .page_rows = p.page_size.divisor,
                             .row_bytes = p.token_bytes,
                             .element_bytes = N::kElementBytes,
                             .box_bytes = N::kBoxBytes,
                             .box_rows = gqa_box_rows(p)});
}

/// N: the kernel's configuration.
template <class N, auto kKernel>
cudaError_t launch_gqa_kernel(const GqaParams& p, cudaStream_t stream) {
  CUtensorMap keys{}, values{};
  if (const cudaError_t status = make_gqa_map<N>(keys, p, p.keys); status != cudaSuccess) {
    return status;
  }
  if (const cudaError_t status = make_gqa_map<N>(values, p, p.values); status != cudaSuccess) {
    return status;
  }
  const cudaError_t status = allow_shared<kKernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  return launch_kernel(kKernel,
                       {.grid = static_cast<unsigned>(p.workers),
                        .block = N::kThreads,
                        .shared_bytes = N::kSharedBytes,
                        .early = true},
                       stream, p, keys, values);
}

}  // namespace lathe::cuda
