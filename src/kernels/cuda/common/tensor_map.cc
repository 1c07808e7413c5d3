// Encodes tensor maps for TMA through the driver.
#include "kernels/cuda/common/tensor_map.h"

#include <atomic>

#include "kernels/cuda/common/row_map.h"

namespace lathe::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up at run time, so that programs need not link the driver library; null without a driver.
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                              12000, cudaEnableDefault, &found);
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(entry)
             : nullptr;
}

struct Boxes {
  const void* base;
  std::int64_t sizes[3];    // elements of a row, rows of a page, pages
  std::int64_t strides[2];  // bytes from row to row and from page to page
  std::int64_t box_rows;
  int element_bytes, box_bytes;
};

cudaError_t make_map(CUtensorMap& out, const Boxes& b) {
  static std::atomic<Encode> known = nullptr;  // null after a failure: the next call tries again
  Encode encode = known.load(std::memory_order_relaxed);
  if (encode == nullptr) {
    encode = find_encode();
    known.store(encode, std::memory_order_relaxed);
  }
  if (encode == nullptr) return cudaErrorNotSupported;
  const auto u64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[3] = {u64(b.sizes[0]), u64(b.sizes[1]), u64(b.sizes[2])};
  const cuuint64_t strides[2] = {u64(b.strides[0]), u64(b.strides[1])};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(b.box_bytes / b.element_bytes),
                             static_cast<cuuint32_t>(b.box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = encode(
      &out, b.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      3, const_cast<void*>(b.base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      b.box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t make_page_map(CUtensorMap& out, const PageBoxes& b) {
  return make_map(out, {b.base,
                        {b.row_bytes / b.element_bytes, b.page_rows, b.pages},
                        {b.row_bytes, b.page_stride},
                        b.box_rows,
                        b.element_bytes,
                        b.box_bytes});
}

cudaError_t make_row_map(CUtensorMap& out, const RowBoxes& b) {
  return make_map(out, {b.base,
                        {b.row_bytes / b.element_bytes, b.rows, b.pages},
                        {b.row_stride, b.pages > 1 ? b.page_stride : b.row_stride},
                        b.box_rows,
                        b.element_bytes,
                        b.box_bytes});
}

}  // namespace lathe::cuda
