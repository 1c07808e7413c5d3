// What the parts of the fake runtime share: its state, the work of its devices, and waits for it.
#pragma once

#include <cuda_runtime_api.h>
#include <ucontext.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "kernels/cuda/common/emulator_hopper.h"
#include "kernels/cuda/fake/fake_cuda.h"

// The runtime's handles point to types that its header leaves incomplete.
struct CUgraph_st {
  std::vector<std::function<void()>> work;
  std::int64_t kernels = 0;
};
struct CUstream_st {
  int device = 0;
  bool capturing = false;
  CUgraph_st captured;
};
struct CUevent_st {
  bool timed = false;
  int device = 0;  // of the thread that made it, and of the streams that it may be recorded on
  std::int64_t after = 0;  // work items of the device queued before it
};
struct CUgraphExec_st {
  CUgraph_st graph;
};

namespace lathe::cuda::fake {

// Address space of all devices; pages come when touched.
inline constexpr std::size_t kSpace = std::size_t{16} << 30;

// A device and its work. A work item runs on a stack of its own, because a kernel may wait for
// another device.
struct FakeDevice {
  std::deque<std::function<void()>> queue;
  std::int64_t done = 0;  // work items that have ended
  bool busy = false;      // an item has begun and not ended
  std::unique_ptr<char[]> stack;
  ucontext_t context;
  // The emulator's state while another device runs.
  emulated::Machine machine;
  std::array<Index3, 4> indices;
  std::array<bool, kMostDevices> peers = {};

  std::int64_t queued() const {
    return done + static_cast<std::int64_t>(queue.size()) + (busy ? 1 : 0);
  }
};

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
  std::int64_t number = 0;  // of all allocations so far
  int opened = 0;           // how often other processes have it open
  bool freed = false;       // by its own process; it goes when the others have closed it
};

struct Runtime {
  std::mutex mutex;  // of all that follows
  std::condition_variable queued;
  std::byte* space = nullptr;
  std::map<std::size_t, Allocation> used;  // by offset
  std::size_t total = kSpace;              // of each device
  std::map<std::byte*, std::size_t> pinned;
  int count = 1;
  bool peer_access = true;
  std::array<FakeDevice, kMostDevices> devices;
  FakeDevice* running = nullptr;
  FakeDevice* loaded = nullptr;  // the emulator has this device's state
  ucontext_t scheduler;
  std::mt19937 order{1};
  bool shuffled = false;
  cudaError_t fail_wait = cudaSuccess;
  Counts counts;
};

using Lock = std::unique_lock<std::mutex>;

// The calling thread's.
inline thread_local int current_device = 0;
inline thread_local int current_process = 0;
inline thread_local CUstream_st* capturing = nullptr;
inline thread_local cudaError_t last_error = cudaSuccess;

Runtime& runtime();

/// Keeps an error for cudaGetLastError(); returns `status`.
cudaError_t fail(cudaError_t status);
int device_of(cudaStream_t stream);

// Callers of what follows hold Runtime::mutex.

/// Runs `work` with device memory accessible.
void run_now(Runtime& r, const std::function<void()>& work);
/// Runs a device's work up to number `end`, and meanwhile the other devices'.
cudaError_t wait_until(Lock& lock, int device, std::int64_t end);
/// Waits for all work of a device, or of the current one.
cudaError_t wait_for_all(Lock& lock, int device);
cudaError_t wait_for_all(Lock& lock);

/// Queues work on the stream's device, or adds it to the graph that the stream captures.
void put(cudaStream_t stream, std::function<void()> work);

/// The allocation that `p` is in, or the end of Runtime::used.
std::map<std::size_t, Allocation>::iterator allocation_of(const void* p);
/// Bytes of a device's memory in use.
std::size_t bytes_of(const Runtime& r, int device);

}  // namespace lathe::cuda::fake
