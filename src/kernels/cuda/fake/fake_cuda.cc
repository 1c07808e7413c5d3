#include "kernels/cuda/fake/fake_cuda.h"

#include <cuda.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/common/emulator_hopper.h"

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

namespace {
constexpr std::size_t kGrain = 256;
constexpr std::size_t kGap = 4096;  // between allocations, always 0xff or unused
constexpr int kProcessors = 4;
constexpr std::size_t kWorkStack = 1 << 20;
}  // namespace

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

namespace {
// What is in a cudaIpcMemHandle_t.
struct SharedAllocation {
  int process;
  std::size_t at;
  std::int64_t number;
};
}  // namespace

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

namespace {
void protect(Runtime& r, int access) {
  LATHE_CHECK(mprotect(r.space, kSpace, access) == 0, "memory that can be protected");
}
}  // namespace

Runtime& runtime() {
  static Runtime r;
  static const bool mapped = [] {
    void* space =
        mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LATHE_CHECK(space != MAP_FAILED, "addresses for device memory");
    // protect() visits every touched page: with small pages, a sixth of the tests' time.
    static_cast<void>(madvise(space, kSpace, MADV_HUGEPAGE));
    r.space = static_cast<std::byte*>(space);
    return true;
  }();
  static_cast<void>(mapped);
  return r;
}

cudaError_t fail(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

namespace {
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

// Runs `work` with device memory accessible.
void run_now(Runtime& r, const std::function<void()>& work) {
  protect(r, PROT_READ | PROT_WRITE);
  work();
  protect(r, PROT_NONE);
}

namespace {
void work_on_device() {
  for (;;) {
    Runtime& r = runtime();
    FakeDevice& d = *r.running;
    const std::function<void()> work = std::move(d.queue.front());
    d.queue.pop_front();
    d.busy = true;
    work();
    d.busy = false;
    ++d.done;
    swapcontext(&d.context, &r.scheduler);
  }
}
void let_others_run() {
  Runtime& r = runtime();
  swapcontext(&r.running->context, &r.scheduler);
}

void swap_state(FakeDevice& d) {
  std::swap(emulated::machine, d.machine);
  std::swap(threadIdx, d.indices[0]);
  std::swap(blockIdx, d.indices[1]);
  std::swap(blockDim, d.indices[2]);
  std::swap(gridDim, d.indices[3]);
}

// Runs the device until its work item has ended or waits for another device.
void run_some(Runtime& r, FakeDevice& d) {
  if (r.loaded != &d) {
    // What the emulator keeps per cluster is told apart by this number.
    const std::int64_t clusters = emulated::machine.clusters_begun;
    if (r.loaded != nullptr) swap_state(*r.loaded);
    swap_state(d);
    emulated::machine.clusters_begun = std::max(emulated::machine.clusters_begun, clusters);
    r.loaded = &d;
  }
  r.running = &d;
  emulated::run_others = let_others_run;
  if (!d.stack) {
    d.stack = std::make_unique<char[]>(kWorkStack);
    getcontext(&d.context);
    d.context.uc_stack.ss_sp = d.stack.get();
    d.context.uc_stack.ss_size = kWorkStack;
    d.context.uc_link = nullptr;
    makecontext(&d.context, work_on_device, 0);
  }
  swapcontext(&r.scheduler, &d.context);
}

// Runs every device that has work once, `mine` only up to work item number `end`, counted from the
// first ever. Returns whether a device has none, so that a thread may have to queue some.
bool run_round(Runtime& r, FakeDevice& mine, std::int64_t end) {
  bool idle = false;
  const int first = r.shuffled ? static_cast<int>(r.order() % kMostDevices) : 0;
  for (int i = 0; i < r.count; ++i) {
    FakeDevice& d = r.devices[static_cast<std::size_t>((first + i) % r.count)];
    const bool none = d.queue.empty() && !d.busy;
    const bool skipped = r.shuffled && r.order() % 2 == 0;
    idle = idle || none;
    if (!none && !skipped && !(&d == &mine && d.done >= end)) run_some(r, d);
  }
  return idle;
}
}  // namespace

// Runs a device's work up to number `end`, and meanwhile the other devices'.
cudaError_t wait_until(Lock& lock, int device, std::int64_t end) {
  Runtime& r = runtime();
  if (capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  ++r.counts.waits;
  FakeDevice& mine = r.devices[static_cast<std::size_t>(device)];
  while (mine.done < end) {
    bool waits = false;  // for something that a thread may queue
    run_now(r, [&] {
      while (mine.done < end && !waits) {
        const std::int64_t before = mine.done;
        waits = run_round(r, mine, end) && mine.done == before;
      }
    });
    if (waits) r.queued.wait_for(lock, std::chrono::microseconds(100));
  }
  return fail(std::exchange(r.fail_wait, cudaSuccess));
}
cudaError_t wait_for_all(Lock& lock, int device) {
  return wait_until(lock, device, runtime().devices[static_cast<std::size_t>(device)].queued());
}
cudaError_t wait_for_all(Lock& lock) { return wait_for_all(lock, current_device); }

int device_of(cudaStream_t stream) { return stream == nullptr ? current_device : stream->device; }

void put(cudaStream_t stream, std::function<void()> work) {
  Runtime& r = runtime();
  if (stream != nullptr && stream->capturing) {
    stream->captured.work.push_back(std::move(work));
  } else {
    r.devices[static_cast<std::size_t>(device_of(stream))].queue.push_back(std::move(work));
    r.queued.notify_all();
  }
}

namespace {
std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
}  // namespace

Counts counts() {
  const Lock lock(runtime().mutex);
  return runtime().counts;
}
std::size_t bytes_of(const Runtime& r, int device) {
  std::size_t sum = 0;
  for (const auto& [at, allocation] : r.used) {
    if (allocation.device == device) sum += allocation.bytes;
  }
  return sum;
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  *out = new CUstream_st;
  (*out)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(runtime().mutex);
  static_cast<void>(wait_for_all(lock, stream->device));
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(runtime().mutex);
  return wait_for_all(lock, device_of(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  capturing = stream;
  stream->capturing = true;
  stream->captured = {};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  if (capturing != stream) return fail(cudaErrorStreamCaptureInvalidated);
  capturing = nullptr;
  stream->capturing = false;
  *out = new CUgraph_st(std::move(stream->captured));
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  ++r.counts.graph_launches;
  r.counts.launches += graph->graph.kernels;
  for (const auto& work : graph->graph.work) put(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  Lock lock(runtime().mutex);
  static_cast<void>(wait_for_all(lock));
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  *out = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0, .device = current_device};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  if (event->device != device_of(stream)) return fail(cudaErrorInvalidResourceHandle);
  event->after = runtime().devices[static_cast<std::size_t>(event->device)].queued();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(runtime().mutex);
  return wait_until(lock, event->device, event->after);
}
// Every work item counts as a millisecond.
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  const Lock lock(runtime().mutex);
  if (!from->timed || !to->timed) return fail(cudaErrorInvalidResourceHandle);
  if (std::max(from->after, to->after) >
      runtime().devices[static_cast<std::size_t>(to->device)].done) {
    return fail(cudaErrorNotReady);
  }
  *out = static_cast<float>(to->after - from->after);
  return cudaSuccess;
}

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
