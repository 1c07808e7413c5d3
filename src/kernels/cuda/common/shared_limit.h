// Raises a kernel's limit of dynamic shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace lathe::cuda {

#ifdef __CUDACC__

/// Allows blocks of kernel kKernel `bytes` of dynamic shared memory; `bytes` must be the same at
/// every call. The driver keeps the limit per device, so it is set once and not at every launch.
template <auto kKernel>
cudaError_t allow_shared(int bytes) {
  static std::atomic<std::uint64_t> devices{0};  // bit per device: set
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((devices.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const cudaError_t status =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) devices.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

#else

// Blocks of the emulator always have all of it.
template <auto kKernel>
cudaError_t allow_shared(int) {
  return cudaSuccess;
}

#endif

}  // namespace lathe::cuda
