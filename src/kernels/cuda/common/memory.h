// Device memory for views and spans: a RowsView, PoolView or span may point to it. Only kernels and
// copies may read what they point to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>

#include "base/memory.h"
#include "base/result.h"
#include "kernels/cuda/common/cuda_error.h"

namespace lathe::cuda {

/// "device memory: wanted 8589934592 bytes, got 1073741824 bytes free of 150754820096; ...".
Error out_of_memory(std::int64_t needed, std::int64_t free, std::int64_t total);

/// Bytes on the calling thread's device, aligned to 256, contents unspecified. 0 bytes allocate
/// nothing. Errors: out_of_memory (exhausted), no device.
Result<OwnedBytes> allocate_device_bytes(std::int64_t bytes);

/// Frees what allocate_device_bytes() returned. Also works while a stream is being captured; the
/// graph must not use the memory. An error does not surface at the caller's next call.
void free_device_bytes(std::byte* bytes);

/// Memory of the calling thread's device. Allocating cannot be captured in a graph.
inline constexpr Memory kDeviceMemory{MemoryKind::device, allocate_device_bytes};

/// Pinned host memory: copies between it and the device are asynchronous. Errors: as
/// allocate_device_bytes().
Result<OwnedBytes> allocate_pinned_bytes(std::int64_t bytes);
inline constexpr Memory kPinnedMemory{MemoryKind::pinned, allocate_pinned_bytes};

/// The reason why scratch could not grow to `bytes`. Tries once more, because null gives no reason.
Error no_scratch(std::int64_t bytes);

/// An owned array on the device.
template <class T>
class DeviceArray {
 public:
  static Result<DeviceArray> make(std::int64_t count) {
    auto bytes = allocate_device_bytes(count * static_cast<std::int64_t>(sizeof(T)));
    if (!bytes) return bytes.error();
    return DeviceArray(std::move(bytes).value(), count);
  }
  T* data() const { return reinterpret_cast<T*>(bytes_.get()); }
  std::int64_t size() const { return count_; }
  std::span<T> span() const { return {data(), static_cast<std::size_t>(count_)}; }

 private:
  DeviceArray(OwnedBytes bytes, std::int64_t count) : bytes_(std::move(bytes)), count_(count) {}
  OwnedBytes bytes_;
  std::int64_t count_;
};

/// Copies whole ranges in stream order. The call waits where the host memory is not pinned.
template <class T>
Result<void> copy_to_device(std::span<const T> host, T* device /* [host.size()] */,
                            cudaStream_t stream,
                            std::source_location where = std::source_location::current()) {
  return call_result(
      cudaMemcpyAsync(device, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream),
      "copy to the device", where);
}
template <class T>
Result<void> copy_to_host(const T* device /* [host.size()] */, std::span<T> host,
                          cudaStream_t stream,
                          std::source_location where = std::source_location::current()) {
  return call_result(
      cudaMemcpyAsync(host.data(), device, host.size_bytes(), cudaMemcpyDeviceToHost, stream),
      "copy to the host", where);
}

}  // namespace lathe::cuda
