// Raises the dynamic shared memory that a kernel's blocks may have.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace lathe::cuda {

#ifdef __CUDACC__

/// Lets kernel kKernel have `bytes` of dynamic shared memory, the same at every call. The driver
/// keeps the limit for each device, so it is asked once and not at every launch.
template <auto kKernel>
cudaError_t allow_shared(int bytes) {
  static std::atomic<std::uint64_t> devices{0};  // a bit for each where it is set
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

// The emulator's blocks have all of it.
template <auto kKernel>
cudaError_t allow_shared(int) {
  return cudaSuccess;
}

#endif

}  // namespace lathe::cuda
