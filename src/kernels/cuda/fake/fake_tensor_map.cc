// The driver's calls that are looked up at run time: tensor maps, as the emulator reads them, and
// the range of an allocation.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/common/emulator_hopper.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace {

// Writes the map that the emulator's copy_box() reads.
CUresult encode_tiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* base,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const int size = type == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                   : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                             : 2;
  const auto all = [&](cuuint32_t count, auto holds) {
    for (cuuint32_t i = 0; i < count; ++i) {
      if (!holds(i)) return false;
    }
    return true;
  };
  const auto stride = [&](cuuint32_t i) {
    return strides[i] % 16 == 0 && strides[i] < std::uint64_t{1} << 40;
  };
  const auto dimension = [&](cuuint32_t i) {
    return box[i] >= 1 && box[i] <= 256 && steps[i] == 1 && sizes[i] > 0;
  };
  // Rows of pages (tensor_map.h), or alternating rows of two arrays (row_map.h).
  const bool turns = rank == 5 && box[1] == 8 && box[2] == 2;
  const bool legal = (rank == 3 || turns) && reinterpret_cast<std::uintptr_t>(base) % 16 == 0 &&
                     all(rank - 1, stride) && all(rank, dimension) && box[rank - 1] == 1;
  if (!legal) return CUDA_ERROR_INVALID_VALUE;
  const lathe::cuda::PageMap map{
      .base = static_cast<const unsigned char*>(base),
      .page_stride = static_cast<std::int64_t>(strides[rank - 2]),
      .row_bytes = static_cast<std::int64_t>(strides[0]),
      .box_rows = turns ? 16 * std::int64_t{box[3]} : box[1],
      .element_bytes = size,
      .box_bytes = static_cast<int>(box[0]) * size,
      .page_rows = static_cast<std::int64_t>(turns ? 8 * sizes[3] : sizes[1]),
      .pages = static_cast<std::int64_t>(sizes[rank - 1]),
      .row_end = static_cast<std::int64_t>(sizes[0]) * size,
      .turn_stride = turns ? static_cast<std::int64_t>(strides[1]) : 0};
  static_assert(sizeof map <= sizeof *out);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr at) {
  const auto found = lathe::cuda::fake::allocation_at(reinterpret_cast<void*>(at));
  if (found.empty()) return CUDA_ERROR_NOT_FOUND;
  *base = reinterpret_cast<CUdeviceptr>(found.data());
  *bytes = found.size();
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *out = nullptr;
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
    *out = reinterpret_cast<void*>(encode_tiled);
  } else if (std::strcmp(symbol, "cuMemGetAddressRange") == 0) {
    *out = reinterpret_cast<void*>(address_range);
  }
  if (found != nullptr) {
    *found = *out != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
