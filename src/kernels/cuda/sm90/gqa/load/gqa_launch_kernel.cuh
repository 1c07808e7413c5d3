// Launches an instance of a grouped-query kernel.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/gqa/load/gqa_load_pages.cuh"

namespace lathe::cuda {

template <class N>
cudaError_t make_gqa_map(CUtensorMap& map, const GqaParams& p, const std::byte* base,
                         std::int64_t token_bytes) {
  if (p.pages == 0 || p.indices != nullptr) return cudaSuccess;  // no box is copied
  return make_page_map(map, {.base = base,
                             .pages = p.pages,
                             .page_stride = p.page_stride,
                             .page_rows = p.page_size.divisor,
                             .row_bytes = token_bytes,
                             .element_bytes = N::kElementBytes,
                             .box_bytes = N::kBoxBytes,
                             .box_rows = gqa_box_rows(p)});
}

/// N: the kernel's configuration.
template <class N, auto kKernel>
cudaError_t launch_gqa_kernel(const GqaParams& p, cudaStream_t stream) {
  CUtensorMap keys{}, values{};
  cudaError_t status = make_gqa_map<N>(keys, p, p.keys, p.token_bytes);
  if (status != cudaSuccess) return status;
  status = make_gqa_map<N>(values, p, p.values, p.value_bytes);
  if (status != cudaSuccess) return status;
  status = allow_shared<kKernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  return launch_kernel(kKernel,
                       {.grid = static_cast<unsigned>(p.workers),
                        .block = N::kThreads,
                        .shared_bytes = N::kSharedBytes,
                        .early = true},
                       stream, p, keys, values);
}

}  // namespace lathe::cuda
