#include <cuda.h>

#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_native.cuh"

namespace lathe::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

/// The driver's function, without linking the driver; null where it has none.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                              12000, cudaEnableDefault, &result);
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(found)
             : nullptr;
}

/// Boxes of `width` dimensions of the keys of a page, at most 64.
bool make_map(Encode encode, const LatentSource& s, unsigned width, CUtensorMapSwizzle swizzle,
              CUtensorMap* map) {
  const std::uint32_t page_size = s.page_size.divisor;
  const cuuint64_t sizes[3] = {576, page_size, static_cast<cuuint64_t>(s.pages_count)};
  const cuuint64_t strides[2] = {576, static_cast<cuuint64_t>(s.page_stride)};
  const cuuint32_t box[3] = {width, page_size < kLatentTile ? page_size : kLatentTile, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<std::byte*>(s.pages), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

cudaError_t launch_native_mla_fp8(const LatentParams& p, cudaStream_t stream) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return cudaErrorSymbolNotFound;
  NativeMaps maps;
  if (!make_map(encode, p.main, 128, CU_TENSOR_MAP_SWIZZLE_128B, &maps.wide) ||
      !make_map(encode, p.main, 64, CU_TENSOR_MAP_SWIZZLE_64B, &maps.narrow)) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t status = cudaFuncSetAttribute(
      latent_native_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Native::kSharedBytes);
  if (status != cudaSuccess) return status;
  latent_native_kernel<<<static_cast<unsigned>(p.workers * p.tiles), Native::kThreads,
                         Native::kSharedBytes, stream>>>(p, maps);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
