// Tensor maps of rows that lie apart (tensor_map.h has those of pages of dense rows).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

/// Rows of elements, and the boxes they are cut into: `box_bytes` of `box_rows` rows, which come
/// swizzled over box_bytes as matrix products want them. Beyond the last row and the end of rows
/// they hold zeros.
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
  // Not 0: a second array lies so many bytes behind each page, a multiple of 16, and a box takes 8
  // rows of each by turns (copy_turns_box()). box_rows, a multiple of 16, counts both; rows, a
  // multiple of 8, one.
  std::int64_t turn_stride = 0;
};

/// As make_page_map().
cudaError_t make_row_map(CUtensorMap& out, const RowBoxes& boxes);

}  // namespace lathe::cuda
