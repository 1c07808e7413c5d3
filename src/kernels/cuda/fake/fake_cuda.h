// A CUDA runtime for tests without a GPU. It runs stream work on the host by the emulator, and only
// when a call waits for it. Device memory is protected outside of that, so host code that reads it
// crashes at once; the destination of a pending copy holds 0xff. It also counts allocations, waits
// and copies, for tests of what a step must not do.
//
// One thread at a time. Work on all streams runs in the order in which it was queued.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace lathe::cuda::fake {

struct Counts {
  std::int64_t allocations = 0;      // of device or pinned memory
  std::int64_t waits = 0;            // calls that waited for a stream or an event
  std::int64_t copies_in = 0;        // to the device
  std::int64_t copies_out = 0;       // to the host
  std::int64_t pageable_copies = 0;  // in either direction, for which real streams would wait
  std::int64_t launches = 0;         // of kernels, including those in graphs
  std::int64_t graph_launches = 0;
};
Counts counts();

/// Bytes of device memory in use.
std::int64_t device_bytes();
/// Sets the total that cudaMemGetInfo() reports; at most 16 GiB.
void set_device_memory(std::int64_t bytes);
/// Makes the next wait fail with this status, as after an error on the device.
void fail_next_wait(cudaError_t status);

/// Queues a kernel's emulation on a stream.
cudaError_t launch(dim3 grid, dim3 block, std::int64_t shared_bytes, cudaStream_t stream,
                   std::function<void()> run);

}  // namespace lathe::cuda::fake
