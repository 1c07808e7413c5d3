// Tensor maps of strided rows (tensor_map.h has those of pages of dense rows).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

/// Rows and the boxes that TMA copies: `box_bytes` of `box_rows` rows, swizzled over box_bytes as
/// wgmma needs them. Beyond the last row and the end of a row a box holds zeros.
struct RowBoxes {
  const void* base = nullptr;  // a multiple of 16, as row_stride
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t row_stride = 0;   // bytes
  std::int64_t pages = 1;        // of `rows` rows each
  std::int64_t page_stride = 0;  // bytes, a multiple of 16; any where there is one page
  int element_bytes = 2;         // 1, 2 or 4 (f32)
  int box_bytes = 128;           // 64 or 128
  std::int64_t box_rows = 64;
  // Not 0: a second array begins turn_stride bytes (a multiple of 16) after the start of each page,
  // and a box alternates 8 rows of each array (copy_turns_box()). box_rows, a multiple of 16,
  // counts rows of both; rows, a multiple of 8, counts one.
  std::int64_t turn_stride = 0;
};

/// Cost and errors: as make_page_map().
cudaError_t make_row_map(CUtensorMap& out, const RowBoxes& boxes);

}  // namespace lathe::cuda
