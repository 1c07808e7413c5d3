#include "kernels/cuda/common/tensor_map.h"

#include <atomic>

#include "kernels/cuda/common/row_map.h"

namespace lathe::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up at run time, so that programs need not link the driver library. Null without a driver.
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
  cuuint32_t rank;
  cuuint64_t sizes[5];    // elements
  cuuint64_t strides[4];  // bytes, of all dimensions but the first
  cuuint32_t box[5];      // elements
  int element_bytes, box_bytes;
};

CUtensorMapDataType type_of(int element_bytes) {
  if (element_bytes == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

cuuint64_t u64(std::int64_t x) { return static_cast<cuuint64_t>(x); }
cuuint32_t u32(std::int64_t x) { return static_cast<cuuint32_t>(x); }

cudaError_t make_map(CUtensorMap& out, const Boxes& b) {
  static std::atomic<Encode> known = nullptr;  // null after a failure: the next call tries again
  Encode encode = known.load(std::memory_order_relaxed);
  if (encode == nullptr) {
    encode = find_encode();
    known.store(encode, std::memory_order_relaxed);
  }
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult result = encode(
      &out, type_of(b.element_bytes), b.rank, const_cast<void*>(b.base), b.sizes, b.strides, b.box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      b.box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      // L2 would read twice the bytes of a narrow box's rows in units of 128.
      b.box_bytes == 64 ? CU_TENSOR_MAP_L2_PROMOTION_L2_64B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t make_page_map(CUtensorMap& out, const PageBoxes& b) {
  return make_map(out, {b.base,
                        3,
                        {u64(b.row_bytes / b.element_bytes), u64(b.page_rows), u64(b.pages)},
                        {u64(b.row_bytes), u64(b.page_stride)},
                        {u32(b.box_bytes / b.element_bytes), u32(b.box_rows), 1},
                        b.element_bytes,
                        b.box_bytes});
}

cudaError_t make_row_map(CUtensorMap& out, const RowBoxes& b) {
  const cuuint64_t cols = u64(b.row_bytes / b.element_bytes);
  const cuuint32_t box_cols = u32(b.box_bytes / b.element_bytes);
  const cuuint64_t page_stride = u64(b.pages > 1 ? b.page_stride : b.row_stride);
  if (b.turn_stride != 0) {
    return make_map(out,
                    {b.base,
                     5,
                     {cols, 8, 2, u64(b.rows / 8), u64(b.pages)},
                     {u64(b.row_stride), u64(b.turn_stride), u64(8 * b.row_stride), page_stride},
                     {box_cols, 8, 2, u32(b.box_rows / 16), 1},
                     b.element_bytes,
                     b.box_bytes});
  }
  return make_map(out, {b.base,
                        3,
                        {cols, u64(b.rows), u64(b.pages)},
                        {u64(b.row_stride), page_stride},
                        {box_cols, u32(b.box_rows), 1},
                        b.element_bytes,
                        b.box_bytes});
}

}  // namespace lathe::cuda
