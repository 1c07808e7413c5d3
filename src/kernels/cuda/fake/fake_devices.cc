// Devices and errors.
#include <cstring>
#include <utility>

#include "kernels/cuda/fake/fake_runtime.h"

namespace lathe::cuda::fake {
namespace {

constexpr int kProcessors = 4;

}  // namespace
}  // namespace lathe::cuda::fake

using namespace lathe::cuda::fake;  // NOLINT: the runtime's names are global ones

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error that a test asked for"; }

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const Lock lock(runtime().mutex);
  if (device < 0 || device >= runtime().count) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(runtime().mutex);
  *count = runtime().count;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int from, int to) {
  const Lock lock(runtime().mutex);
  const int count = runtime().count;
  if (from < 0 || from >= count || to < 0 || to >= count) return fail(cudaErrorInvalidDevice);
  *can = from != to && runtime().peer_access ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  const Lock lock(runtime().mutex);
  Runtime& r = runtime();
  if (peer < 0 || peer >= r.count || peer == current_device) return fail(cudaErrorInvalidDevice);
  if (!r.peer_access) return fail(cudaErrorPeerAccessUnsupported);
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  if (std::exchange(r.devices[at(current_device)].peers[at(peer)], true)) {
    return fail(cudaErrorPeerAccessAlreadyEnabled);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  const Lock lock(runtime().mutex);
  *out = {};
  std::strcpy(out->name, "emulated");
  out->uuid.bytes[0] = static_cast<char>(1 + device);
  out->major = 9;
  out->minor = 0;
  out->multiProcessorCount = kProcessors;
  out->totalGlobalMem = runtime().total;
  out->sharedMemPerBlockOptin = lathe::cuda::emulated::kSharedBytes;
  out->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr which, int) {
  *out = 0;
  if (which == cudaDevAttrMultiProcessorCount) *out = kProcessors;
  if (which == cudaDevAttrMaxSharedMemoryPerBlockOptin) {
    *out = static_cast<int>(lathe::cuda::emulated::kSharedBytes);
  }
  if (which == cudaDevAttrComputeCapabilityMajor) *out = 9;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
