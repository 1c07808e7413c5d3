// Tensor maps: descriptors of arrays from which TMA copies boxes.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

/// Pages of dense rows and the boxes that TMA copies: `box_bytes` of `box_rows` rows of a page,
/// swizzled over box_bytes as wgmma needs them.
struct PageBoxes {
  const void* base = nullptr;  // a multiple of 16, as both strides
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;  // bytes
  std::int64_t page_rows = 0;
  std::int64_t row_bytes = 0;
  int element_bytes = 2;  // 1 or 2
  int box_bytes = 128;    // 64 or 128
  std::int64_t box_rows = 64;
};

/// Runs on the host alone, in about a microsecond. cudaErrorNotSupported where the driver lacks the
/// function.
cudaError_t make_page_map(CUtensorMap& out, const PageBoxes& boxes);

}  // namespace lathe::cuda
