#include "kernels/devices/query_gpu.h"

#ifdef LATHE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace lathe {

#ifdef LATHE_HAS_CUDA

namespace {

std::optional<Device> device_of(int major) {
  switch (major) {
    case 8:
      return Device::sm80;
    case 9:
      return Device::sm90;
    case 10:
      return Device::sm100;
    default:
      return std::nullopt;
  }
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, 0) == cudaSuccess ? value : 0;
}

}  // namespace

std::optional<Machine> query_gpu() {
  cudaDeviceProp properties;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    return std::nullopt;
  }
  const auto device = device_of(properties.major);
  if (!device) return std::nullopt;
  // FLOPS: the peaks of the described machine of that architecture, scaled to this GPU's number of
  // processors. Bandwidth: the memory's clock (both edges) times its width.
  Machine m = describe_machine(*device);
  const double share = static_cast<double>(properties.multiProcessorCount) / m.processors;
  m.bf16_flops *= share;
  m.fp8_flops *= share;
  m.model = properties.name;
  m.processors = properties.multiProcessorCount;
  m.block_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  m.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  const double clock = 1e3 * attribute(cudaDevAttrMemoryClockRate);
  const double width = attribute(cudaDevAttrGlobalMemoryBusWidth) / 8.0;
  if (clock > 0 && width > 0) m.bytes_per_second = 2 * clock * width;
  return m;
}

std::int64_t free_gpu_bytes() {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return static_cast<std::int64_t>(free);
}

#else

std::optional<Machine> query_gpu() { return std::nullopt; }
std::int64_t free_gpu_bytes() { return 0; }

#endif

}  // namespace lathe
