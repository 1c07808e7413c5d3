// Makes the tensor map for TMA boxes of bf16 pages.
#pragma once

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/latent/load/load_pages.cuh"

namespace lathe::cuda {

inline cudaError_t make_key_map(CUtensorMap& map, const LatentParams& p, std::int64_t row_bytes) {
  return make_page_map(map, {.base = p.main.pages,
                             .pages = p.main.pages_count,
                             .page_stride = p.main.page_stride,
                             .page_rows = p.main.page_size.divisor,
                             .row_bytes = row_bytes,
                             .box_rows = box_rows(p)});
}

}  // namespace lathe::cuda
