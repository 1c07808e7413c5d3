// A CUDA runtime for tests without a GPU. It runs stream work on the host by the emulator, and only
// when a call waits for it. Device memory is protected outside of that, so host code that reads it
// crashes at once; the destination of a pending copy holds 0xff. It also counts allocations, waits
// and copies, for tests of what a step must not do.
//
// It has one device, or as many as a test says, each with a queue: work on all streams of a device
// runs in the order in which it was queued. A thread that waits for one device runs all of them in
// turns, so kernels may wait for one another. Calls may come from several threads; a thread's
// current device, capture and last error are its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>

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

inline constexpr int kMostDevices = 8;
/// How many devices there are, 0 to count - 1, and whether they can access each other's memory.
void set_devices(int count, bool peer_access = true);
/// Runs devices in random order and unequally often. 0: in turns.
void shuffle_devices(unsigned seed);

/// The calling thread's CUDA calls are those of a process of this number; 0 at first. It only
/// matters for memory that processes share (IPC).
void act_as_process(int process);
/// The device allocation that `at` is in; empty: none.
std::span<std::byte> allocation_at(const void* at);

/// Bytes of the current device's memory in use.
std::int64_t device_bytes();
/// Sets the total of each device that cudaMemGetInfo() reports; at most 16 GiB.
void set_device_memory(std::int64_t bytes);
/// Makes the next wait fail with this status, as after an error on the device.
void fail_next_wait(cudaError_t status);

/// Queues a kernel's emulation on a stream.
cudaError_t launch(dim3 grid, dim3 block, std::int64_t shared_bytes, cudaStream_t stream,
                   std::function<void()> run);

}  // namespace lathe::cuda::fake
