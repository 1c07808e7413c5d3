#include "kernels/cuda/common/tensor_map.h"

namespace lathe::cuda {

cudaError_t make_page_map(CUtensorMap& out, const void* base, std::int64_t pages,
                          std::int64_t page_stride, std::int64_t page_rows, std::int64_t row_elems,
                          std::int64_t box_rows) {
  // Asked for at run time, so that programs need no driver library to be linked.
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                              12000, cudaEnableDefault, &found);
  if (status != cudaSuccess) return status;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const auto u64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[3] = {u64(row_elems), u64(page_rows), u64(pages)};
  const cuuint64_t strides[2] = {u64(row_elems * 2), u64(page_stride)};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  const CUresult result =
      encode(&out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(base), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace lathe::cuda
