#include "kernels/cuda/common/memory.h"

#include <fmt/format.h>

namespace lathe::cuda {

Error out_of_memory(std::int64_t needed, std::int64_t free, std::int64_t total) {
  return {ErrorCode::exhausted, "device memory", fmt::format("{} bytes", needed),
          fmt::format("{} bytes free of {}", free, total),
          fmt::format("at most {} bytes fit next to what is in use", free)};
}

void free_device_bytes(std::byte* bytes) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (cudaFree(bytes) != cudaSuccess) cudaGetLastError();
  cudaThreadExchangeStreamCaptureMode(&mode);
}

Result<OwnedBytes> allocate_pinned_bytes(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<std::size_t>(bytes));
  if (auto ok = call_result(status, "cudaMallocHost"); !ok) {
    Error error = ok.error();
    if (status == cudaErrorMemoryAllocation) error.code = ErrorCode::exhausted;
    return error;
  }
  return OwnedBytes(static_cast<std::byte*>(data), [](std::byte* p) {
    if (cudaFreeHost(p) != cudaSuccess) cudaGetLastError();
  });
}

Error no_scratch(std::int64_t bytes) {
  const auto again = allocate_device_bytes(bytes);
  return again ? out_of_memory(bytes, 0, 0) : again.error();
}

Result<OwnedBytes> allocate_device_bytes(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // reported here; it must not surface at the next launch
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return out_of_memory(bytes, static_cast<std::int64_t>(free), static_cast<std::int64_t>(total));
  }
  if (auto ok = call_result(status, "cudaMalloc"); !ok) return ok.error();
  return OwnedBytes(static_cast<std::byte*>(data), free_device_bytes);
}

}  // namespace lathe::cuda
