#include "kernels/cuda/common/ipc_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/device.h"

namespace lathe::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryHandle::ipc));
static_assert(sizeof(cudaUUID_t) == sizeof(MemoryHandle::gpu));

Error unshared(const char* field, ErrorCode code, std::string wanted, cudaError_t status,
               std::string hint) {
  cudaGetLastError();  // reported here; it must not surface at the next launch
  return {code, field, std::move(wanted), cudaGetErrorName(status), std::move(hint)};
}

// A system that has no IPC, or where these two processes may not use it.
std::optional<Error> no_ipc(const char* field, cudaError_t status) {
  if (status != cudaErrorNotSupported && status != cudaErrorNotPermitted &&
      status != cudaErrorOperatingSystem) {
    return std::nullopt;
  }
  return unshared(field, ErrorCode::unsupported, "CUDA IPC between processes", status,
                  "containers must share their IPC and process namespaces; MIG has none");
}

// Looked up at run time, so that programs need not link the driver library.
Result<std::int64_t> offset_in_allocation(std::span<const std::byte> memory) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 12000,
                                                              cudaEnableDefault, &found);
  if (auto ok = call_result(status, "cudaGetDriverEntryPointByVersion"); !ok) return ok.error();
  const auto range_of = reinterpret_cast<decltype(&cuMemGetAddressRange)>(entry);
  const auto at = reinterpret_cast<CUdeviceptr>(memory.data());
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (found != cudaDriverEntryPointSuccess || range_of(&base, &bytes, at) != CUDA_SUCCESS) {
    return unshared("memory", ErrorCode::unsupported, "memory of cudaMalloc()",
                    cudaErrorInvalidValue, "");
  }
  if (memory.size() > bytes - (at - base)) {
    return Error{ErrorCode::out_of_range, "memory",
                 fmt::format("at most {} bytes, up to the allocation's end", bytes - (at - base)),
                 fmt::format("{}", memory.size()), ""};
  }
  return static_cast<std::int64_t>(at - base);
}

// What this process calls the handle's GPU; none: it does not see it.
std::optional<int> find_gpu(const MemoryHandle& handle) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return std::nullopt;
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess &&
        std::memcmp(&properties.uuid, handle.gpu.data(), sizeof handle.gpu) == 0) {
      return gpu;
    }
  }
  return std::nullopt;
}

Error no_access(std::string from, int gpu) {
  return {ErrorCode::unsupported, "handle",
          fmt::format("memory of a GPU that GPU {} can access", gpu), std::move(from),
          "nvidia-smi topo -p2p r shows which pairs can"};
}

Error not_opened(cudaError_t status, int gpu) {
  if (auto error = no_ipc("handle", status)) return *error;
  if (status == cudaErrorPeerAccessUnsupported || status == cudaErrorTooManyPeers) {
    cudaGetLastError();
    return no_access("one that it cannot", gpu);
  }
  if (status == cudaErrorDeviceUninitialized) {
    return unshared("handle", ErrorCode::invalid_argument, "memory of another process", status,
                    "this process exported it; use its address");
  }
  return unshared("handle", ErrorCode::device, "memory that another process holds", status,
                  "has that process ended, or freed the memory?");
}

}  // namespace

Result<MemoryHandle> export_memory(std::span<const std::byte> memory) {
  cudaPointerAttributes attributes{};
  const cudaError_t known = cudaPointerGetAttributes(&attributes, memory.data());
  if (auto ok = call_result(known, "cudaPointerGetAttributes"); !ok) return ok.error();
  if (attributes.type != cudaMemoryTypeDevice) {
    return Error{ErrorCode::invalid_argument, "memory", "memory of a GPU", "memory of the host",
                 "shared memory of the host needs no export"};
  }
  const auto offset = offset_in_allocation(memory);
  if (!offset) return offset.error();
  cudaDeviceProp properties{};
  const cudaError_t asked = cudaGetDeviceProperties(&properties, attributes.device);
  if (auto ok = call_result(asked, "cudaGetDeviceProperties"); !ok) return ok.error();
  cudaIpcMemHandle_t ipc;
  const cudaError_t status =
      cudaIpcGetMemHandle(&ipc, const_cast<std::byte*>(memory.data()) - *offset);
  if (status != cudaSuccess) {
    if (auto error = no_ipc("memory", status)) return *error;
    return unshared("memory", ErrorCode::unsupported, "memory of cudaMalloc()", status,
                    "IPC cannot share memory pools and mapped (VMM) memory; torch has such if "
                    "expandable_segments is set");
  }
  MemoryHandle out;
  std::memcpy(out.ipc.data(), &ipc, sizeof ipc);
  std::memcpy(out.gpu.data(), &properties.uuid, sizeof out.gpu);
  out.offset = *offset;
  out.bytes = std::ssize(memory);
  return out;
}

Result<PeerMemory> PeerMemory::open(const MemoryHandle& handle) {
  if (handle.offset < 0 || handle.bytes < 0) {
    return Error{ErrorCode::malformed, "handle", "the bytes of a MemoryHandle",
                 fmt::format("{} bytes at {}", handle.bytes, handle.offset), ""};
  }
  int gpu = 0;
  if (auto ok = call_result(cudaGetDevice(&gpu), "cudaGetDevice"); !ok) return ok.error();
  // IPC also opens memory of GPUs that CUDA_VISIBLE_DEVICES hides from this process.
  const std::optional<int> from = find_gpu(handle);
  if (from && *from != gpu) {
    int can = 0;
    const cudaError_t asked = cudaDeviceCanAccessPeer(&can, gpu, *from);
    if (auto ok = call_result(asked, "cudaDeviceCanAccessPeer"); !ok) return ok.error();
    if (can == 0) return no_access(fmt::format("GPU {}", *from), gpu);
  }
  cudaIpcMemHandle_t ipc;
  std::memcpy(&ipc, handle.ipc.data(), sizeof ipc);
  void* base = nullptr;
  const cudaError_t status = cudaIpcOpenMemHandle(&base, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (status != cudaSuccess) return not_opened(status, gpu);
  return PeerMemory(static_cast<std::byte*>(base), gpu, handle);
}

void PeerMemory::Close::operator()(std::byte* base) const {
  const auto there = OnDevice::make(gpu);
  if (cudaIpcCloseMemHandle(base) != cudaSuccess) cudaGetLastError();
}

}  // namespace lathe::cuda
