#include "kernels/devices/query_gpu.h"

#ifdef LATHE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/exchange/nccl.h"
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

int attribute(cudaDeviceAttr which, int number) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, number) == cudaSuccess ? value : 0;
}

}  // namespace

std::int32_t gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::optional<Machine> query_gpu(std::int32_t number) {
  cudaDeviceProp properties;
  if (number >= gpu_count() || cudaGetDeviceProperties(&properties, number) != cudaSuccess) {
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
  m.block_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
  m.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  const double clock = 1e3 * attribute(cudaDevAttrMemoryClockRate, number);
  const double width = attribute(cudaDevAttrGlobalMemoryBusWidth, number) / 8.0;
  if (clock > 0 && width > 0) m.bytes_per_second = 2 * clock * width;
  return m;
}

Result<void> use_gpu(std::int32_t number) {
  return cuda::call_result(cudaSetDevice(number), "cudaSetDevice");
}

std::int64_t free_gpu_bytes(std::int32_t number) {
  std::size_t free = 0, total = 0;
  int before = 0;
  const bool known = cudaGetDevice(&before) == cudaSuccess &&
                     cudaSetDevice(number) == cudaSuccess &&
                     cudaMemGetInfo(&free, &total) == cudaSuccess;
  cudaSetDevice(before);
  if (!known) {
    cudaGetLastError();
    return 0;
  }
  return static_cast<std::int64_t>(free);
}

bool peer_access(std::span<const std::int32_t> numbers) {
  for (const std::int32_t a : numbers) {
    for (const std::int32_t b : numbers) {
      int can = 0;
      if (a != b && (cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess || can == 0)) return false;
    }
  }
  return true;
}

bool has_nccl() { return cuda::open_nccl().ok(); }

#else

std::int32_t gpu_count() { return 0; }
std::optional<Machine> query_gpu(std::int32_t) { return std::nullopt; }
Result<void> use_gpu(std::int32_t) { return {}; }
std::int64_t free_gpu_bytes(std::int32_t) { return 0; }
bool peer_access(std::span<const std::int32_t>) { return false; }
bool has_nccl() { return false; }

#endif

}  // namespace lathe
