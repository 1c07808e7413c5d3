// Descriptions of arrays that the copy engine (TMA) cuts boxes from.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

/// Pages of rows of 16-bit elements, cut into boxes of 64 elements of `box_rows` rows of a page, which
/// come swizzled as matrix products want them (wgmma.cuh). base and page_stride (bytes) at multiples
/// of 16, row_elems a multiple of 8. Host memory alone; a microsecond.
cudaError_t make_page_map(CUtensorMap& out, const void* base, std::int64_t pages,
                          std::int64_t page_stride, std::int64_t page_rows, std::int64_t row_elems,
                          std::int64_t box_rows);

}  // namespace lathe::cuda
