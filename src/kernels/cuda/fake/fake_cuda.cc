#include "kernels/cuda/fake/fake_cuda.h"

#include <utility>

#include "base/check.h"
#include "kernels/cuda/fake/fake_runtime.h"

namespace lathe::cuda::fake {

Counts counts() {
  const Lock lock(runtime().mutex);
  return runtime().counts;
}
std::int64_t device_bytes() {
  const Lock lock(runtime().mutex);
  return static_cast<std::int64_t>(bytes_of(runtime(), current_device));
}
void set_device_memory(std::int64_t bytes) {
  const Lock lock(runtime().mutex);
  runtime().total = static_cast<std::size_t>(bytes);
}
void fail_next_wait(cudaError_t status) {
  const Lock lock(runtime().mutex);
  runtime().fail_wait = status;
}
void set_devices(int count, bool peer_access) {
  const Lock lock(runtime().mutex);
  LATHE_CHECK(count >= 1 && count <= kMostDevices, "one to kMostDevices devices");
  runtime().count = count;
  runtime().peer_access = peer_access;
  for (FakeDevice& d : runtime().devices) d.peers = {};
}
void act_as_process(int number) { current_process = number; }
std::span<std::byte> allocation_at(const void* at) {
  const Lock lock(runtime().mutex);
  const auto found = allocation_of(at);
  if (found == runtime().used.end()) return {};
  return {runtime().space + found->first, found->second.bytes};
}
void shuffle_devices(unsigned seed) {
  const Lock lock(runtime().mutex);
  runtime().order.seed(seed);
  runtime().shuffled = seed != 0;
}

cudaError_t launch(dim3 grid, dim3 block, std::int64_t shared_bytes, cudaStream_t stream,
                   std::function<void()> run) {
  constexpr unsigned kThreads = 1024;
  const bool legal = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y < 65536 && grid.z < 65536 &&
                     block.x * block.y * block.z > 0 && block.x * block.y * block.z <= kThreads &&
                     shared_bytes <= static_cast<std::int64_t>(emulated::kSharedBytes);
  if (!legal) return fail(cudaErrorInvalidConfiguration);
  const Lock lock(runtime().mutex);
  if (stream != nullptr && stream->capturing) {
    ++stream->captured.kernels;
  } else {
    ++runtime().counts.launches;
  }
  put(stream, std::move(run));
  return cudaSuccess;
}

}  // namespace lathe::cuda::fake
