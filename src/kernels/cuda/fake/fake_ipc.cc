// Device memory that processes share.
#include <cstring>

#include "kernels/cuda/fake/fake_runtime.h"

namespace lathe::cuda::fake {
namespace {

// What is in a cudaIpcMemHandle_t.
struct SharedAllocation {
  int process;
  std::size_t at;
  std::int64_t number;
};

}  // namespace
}  // namespace lathe::cuda::fake

using namespace lathe::cuda::fake;  // NOLINT: the runtime's names are global ones

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* out, void* p) {
  const Lock lock(runtime().mutex);
  const auto found = allocation_of(p);
  if (found == runtime().used.end()) return fail(cudaErrorInvalidValue);
  const SharedAllocation shared{current_process, found->first, found->second.number};
  static_assert(sizeof shared <= sizeof *out);
  *out = {};
  std::memcpy(out, &shared, sizeof shared);
  return cudaSuccess;
}
// The processes of a test have one address space, so memory is at its own address in all of them.
cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle, unsigned) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  SharedAllocation shared;
  std::memcpy(&shared, &handle, sizeof shared);
  if (shared.process == current_process) return fail(cudaErrorDeviceUninitialized);
  const auto found = r.used.find(shared.at);
  if (found == r.used.end() || found->second.number != shared.number || found->second.freed) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (found->second.device != current_device && !r.peer_access) {
    return fail(cudaErrorPeerAccessUnsupported);
  }
  ++found->second.opened;
  *out = r.space + shared.at;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* p) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  const auto found = allocation_of(p);
  if (found == r.used.end() || found->second.opened == 0 || p != r.space + found->first) {
    return fail(cudaErrorInvalidValue);
  }
  if (--found->second.opened == 0 && found->second.freed) r.used.erase(found);
  return cudaSuccess;
}
