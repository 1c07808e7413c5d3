// Allocations of device and pinned memory, copies and fills.
#include <cstring>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "kernels/cuda/fake/fake_runtime.h"

namespace lathe::cuda::fake {
namespace {

constexpr std::size_t kGrain = 256;
constexpr std::size_t kGap = 4096;  // between allocations, always 0xff or unused

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

bool on_device(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  return at >= runtime().space && at < runtime().space + kSpace;
}
bool is_pinned(const void* p) {
  auto& pinned = runtime().pinned;
  auto* at = static_cast<std::byte*>(const_cast<void*>(p));
  const auto after = pinned.upper_bound(at);
  if (after == pinned.begin()) return false;
  const auto& [first, bytes] = *std::prev(after);
  return at < first + bytes;
}

}  // namespace

std::map<std::size_t, Allocation>::iterator allocation_of(const void* p) {
  Runtime& r = runtime();
  if (!on_device(p)) return r.used.end();
  const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(p) - r.space);
  auto after = r.used.upper_bound(at);
  if (after == r.used.begin()) return r.used.end();
  return at < (--after)->first + after->second.bytes ? after : r.used.end();
}

std::size_t bytes_of(const Runtime& r, int device) {
  std::size_t sum = 0;
  for (const auto& [at, allocation] : r.used) {
    if (allocation.device == device) sum += allocation.bytes;
  }
  return sum;
}

}  // namespace lathe::cuda::fake

using namespace lathe::cuda::fake;  // NOLINT: the runtime's names are global ones

cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  *out = nullptr;
  if (capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return cudaSuccess;
  const std::size_t size = rounded(bytes, kGrain);
  if (bytes_of(r, current_device) + size > r.total) return fail(cudaErrorMemoryAllocation);
  std::size_t at = 0;  // start of the first gap that is large enough
  for (const auto& [offset, used] : r.used) {
    if (at + size + kGap <= offset) break;
    at = offset + rounded(used.bytes, kGrain) + kGap;
  }
  if (at + size > kSpace) return fail(cudaErrorMemoryAllocation);
  ++r.counts.allocations;
  r.used[at] = {size, current_device, r.counts.allocations};
  run_now(r, [&] { std::memset(r.space + at, 0xff, size); });
  *out = r.space + at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  Runtime& r = runtime();
  if (p == nullptr) return cudaSuccess;
  Lock lock(r.mutex);
  const auto found = r.used.find(static_cast<std::size_t>(static_cast<std::byte*>(p) - r.space));
  if (found == r.used.end() || found->second.freed) return fail(cudaErrorInvalidValue);
  if (capturing == nullptr) static_cast<void>(wait_for_all(lock, found->second.device));
  found->second.freed = true;
  if (found->second.opened == 0) r.used.erase(found);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  const Lock lock(runtime().mutex);
  *out = {};
  const auto found = allocation_of(p);
  out->type = found != runtime().used.end() ? cudaMemoryTypeDevice
              : is_pinned(p)                ? cudaMemoryTypeHost
                                            : cudaMemoryTypeUnregistered;
  if (out->type == cudaMemoryTypeDevice) out->device = found->second.device;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** out, std::size_t bytes) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  auto* data = new (std::align_val_t{kGap}) std::byte[bytes];
  std::memset(data, 0xff, bytes);
  ++r.counts.allocations;
  r.pinned[data] = bytes;
  *out = data;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (p == nullptr) return cudaSuccess;
  Lock lock(runtime().mutex);
  static_cast<void>(wait_for_all(lock));
  runtime().pinned.erase(static_cast<std::byte*>(p));
  ::operator delete[](static_cast<std::byte*>(p), std::align_val_t{kGap});
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  Runtime& r = runtime();
  if (width == 0 || height == 0) return cudaSuccess;
  Lock lock(r.mutex);
  const bool in = !on_device(from), out = !on_device(to);
  if (in) ++r.counts.copies_in;
  if (out) ++r.counts.copies_out;
  const void* host = in ? from : out ? to : nullptr;
  const bool pageable = host != nullptr && !is_pinned(host);
  if (pageable) ++r.counts.pageable_copies;
  const auto copy = [=](const std::byte* source, std::size_t pitch) {
    for (std::size_t y = 0; y < height; ++y) {
      std::memcpy(static_cast<std::byte*>(to) + y * to_pitch, source + y * pitch, width);
    }
  };
  if (pageable && in) {
    std::vector<std::byte> bytes(width * height);
    for (std::size_t y = 0; y < height; ++y) {
      std::memcpy(bytes.data() + y * width, static_cast<const std::byte*>(from) + y * from_pitch,
                  width);
    }
    put(stream, [=, bytes = std::move(bytes)] { copy(bytes.data(), width); });
    return cudaSuccess;
  }
  put(stream, [=] { copy(static_cast<const std::byte*>(from), from_pitch); });
  return pageable ? wait_for_all(lock, device_of(stream)) : cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t status = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  if (status != cudaSuccess) return status;
  Lock lock(runtime().mutex);
  return wait_for_all(lock);
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  put(stream, [=] { std::memset(at, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* at, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  put(stream, [=] {
    for (std::size_t y = 0; y < height; ++y) {
      std::memset(static_cast<std::byte*>(at) + y * pitch, value, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock(runtime().mutex);
  *total = runtime().total;
  *free = runtime().total - bytes_of(runtime(), current_device);
  return cudaSuccess;
}
