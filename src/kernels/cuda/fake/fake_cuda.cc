#include "kernels/cuda/fake/fake_cuda.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/common/emulator_hopper.h"

// The runtime's handles point to types that its header leaves incomplete.
struct CUstream_st {
  bool captures = false;
};
struct CUevent_st {
  bool timed = false;
  std::int64_t after = 0;  // work items queued before it
};
struct CUgraph_st {
  std::vector<std::function<void()>> work;
  std::int64_t kernels = 0;
};
struct CUgraphExec_st {
  CUgraph_st graph;
};

namespace lathe::cuda::fake {
namespace {

constexpr std::size_t kSpace = std::size_t{16} << 30;  // address space; pages come when touched
constexpr std::size_t kGrain = 256;
constexpr std::size_t kGap = 4096;  // between allocations, always 0xff or unused
constexpr int kProcessors = 4;

struct Runtime {
  std::byte* space = nullptr;
  std::map<std::size_t, std::size_t> used;  // offset to bytes
  std::size_t total = kSpace;
  std::map<std::byte*, std::size_t> pinned;
  std::deque<std::function<void()>> queue;
  std::int64_t done = 0;  // work items that have left the queue
  CUstream_st* capturing = nullptr;
  CUgraph_st captured;
  cudaError_t fail_wait = cudaSuccess;
  cudaError_t last = cudaSuccess;
  Counts counts;
};

void protect(Runtime& r, int access) {
  LATHE_CHECK(mprotect(r.space, kSpace, access) == 0, "memory that can be protected");
}

Runtime& runtime() {
  static Runtime r;
  if (r.space == nullptr) {
    void* space =
        mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LATHE_CHECK(space != MAP_FAILED, "addresses for device memory");
    // protect() visits every touched page: with small pages, a sixth of the tests' time.
    static_cast<void>(madvise(space, kSpace, MADV_HUGEPAGE));
    r.space = static_cast<std::byte*>(space);
  }
  return r;
}

cudaError_t fail(cudaError_t status) {
  if (status != cudaSuccess) runtime().last = status;
  return status;
}

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

// Runs `work` with device memory accessible.
void run_now(Runtime& r, const std::function<void()>& work) {
  protect(r, PROT_READ | PROT_WRITE);
  work();
  protect(r, PROT_NONE);
}

// Runs the queue up to and including work item number `end`, counted from the first ever.
cudaError_t wait_until(std::int64_t end) {
  Runtime& r = runtime();
  if (r.capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  ++r.counts.waits;
  if (r.done < end) {
    run_now(r, [&] {
      for (; r.done < end; ++r.done) {
        const std::function<void()> work = std::move(r.queue.front());
        r.queue.pop_front();
        work();
      }
    });
  }
  return fail(std::exchange(r.fail_wait, cudaSuccess));
}
cudaError_t wait_for_all() {
  return wait_until(runtime().done + static_cast<std::int64_t>(runtime().queue.size()));
}

void put(cudaStream_t stream, std::function<void()> work) {
  Runtime& r = runtime();
  if (stream != nullptr && r.capturing == stream) {
    r.captured.work.push_back(std::move(work));
  } else {
    r.queue.push_back(std::move(work));
  }
}

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Counts counts() { return runtime().counts; }
std::int64_t device_bytes() {
  std::size_t sum = 0;
  for (const auto& [at, bytes] : runtime().used) sum += bytes;
  return static_cast<std::int64_t>(sum);
}
void set_device_memory(std::int64_t bytes) { runtime().total = static_cast<std::size_t>(bytes); }
void fail_next_wait(cudaError_t status) { runtime().fail_wait = status; }

cudaError_t launch(dim3 grid, dim3 block, std::int64_t shared_bytes, cudaStream_t stream,
                   std::function<void()> run) {
  constexpr unsigned kThreads = 1024;
  const bool legal = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y < 65536 && grid.z < 65536 &&
                     block.x * block.y * block.z > 0 && block.x * block.y * block.z <= kThreads &&
                     shared_bytes <= static_cast<std::int64_t>(emulated::kSharedBytes);
  if (!legal) return fail(cudaErrorInvalidConfiguration);
  Runtime& r = runtime();
  if (stream != nullptr && r.capturing == stream) {
    ++r.captured.kernels;
  } else {
    ++r.counts.launches;
  }
  put(stream, std::move(run));
  return cudaSuccess;
}

}  // namespace lathe::cuda::fake

using namespace lathe::cuda::fake;  // NOLINT: the runtime's names are global ones

cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  Runtime& r = runtime();
  *out = nullptr;
  if (r.capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return cudaSuccess;
  const std::size_t size = rounded(bytes, kGrain);
  if (static_cast<std::size_t>(device_bytes()) + size > r.total) {
    return fail(cudaErrorMemoryAllocation);
  }
  std::size_t at = 0;  // start of the first gap that is large enough
  for (const auto& [offset, used] : r.used) {
    if (at + size + kGap <= offset) break;
    at = offset + rounded(used, kGrain) + kGap;
  }
  if (at + size > kSpace) return fail(cudaErrorMemoryAllocation);
  ++r.counts.allocations;
  r.used[at] = size;
  run_now(r, [&] { std::memset(r.space + at, 0xff, size); });
  *out = r.space + at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  Runtime& r = runtime();
  if (p == nullptr) return cudaSuccess;
  if (r.capturing == nullptr) static_cast<void>(wait_for_all());
  const auto at = static_cast<std::size_t>(static_cast<std::byte*>(p) - r.space);
  return r.used.erase(at) == 1 ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** out, std::size_t bytes) {
  Runtime& r = runtime();
  if (r.capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  auto* data = new (std::align_val_t{kGap}) std::byte[bytes];
  std::memset(data, 0xff, bytes);
  ++r.counts.allocations;
  r.pinned[data] = bytes;
  *out = data;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (p == nullptr) return cudaSuccess;
  static_cast<void>(wait_for_all());
  runtime().pinned.erase(static_cast<std::byte*>(p));
  ::operator delete[](static_cast<std::byte*>(p), std::align_val_t{kGap});
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  Runtime& r = runtime();
  if (width == 0 || height == 0) return cudaSuccess;
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
  return pageable ? wait_for_all() : cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t status = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return status == cudaSuccess ? wait_for_all() : status;
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  put(stream, [=] { std::memset(at, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* at, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  put(stream, [=] {
    for (std::size_t y = 0; y < height; ++y) {
      std::memset(static_cast<std::byte*>(at) + y * pitch, value, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = runtime().total;
  *free = runtime().total - static_cast<std::size_t>(device_bytes());
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  *out = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  static_cast<void>(wait_for_all());
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return wait_for_all(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Runtime& r = runtime();
  if (stream == nullptr || r.capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  r.capturing = stream;
  r.captured = {};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  Runtime& r = runtime();
  if (r.capturing != stream) return fail(cudaErrorStreamCaptureInvalidated);
  r.capturing = nullptr;
  *out = new CUgraph_st(std::move(r.captured));
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  Runtime& r = runtime();
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
  static_cast<void>(wait_for_all());
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  *out = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->after = runtime().done + static_cast<std::int64_t>(runtime().queue.size());
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return wait_until(event->after); }
// Every work item counts as a millisecond.
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  if (!from->timed || !to->timed) return fail(cudaErrorInvalidResourceHandle);
  if (std::max(from->after, to->after) > runtime().done) return fail(cudaErrorNotReady);
  *out = static_cast<float>(to->after - from->after);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(runtime().last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return runtime().last; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error that a test asked for"; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  *out = {};
  std::strcpy(out->name, "emulated");
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

namespace {

// Writes the map that the emulator's copy_box() reads.
CUresult encode_tiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* base,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const int size = type == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                   : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                             : 2;
  const auto all = [&](cuuint32_t count, auto holds) {
    for (cuuint32_t i = 0; i < count; ++i) {
      if (!holds(i)) return false;
    }
    return true;
  };
  const auto stride = [&](cuuint32_t i) {
    return strides[i] % 16 == 0 && strides[i] < std::uint64_t{1} << 40;
  };
  const auto dimension = [&](cuuint32_t i) {
    return box[i] >= 1 && box[i] <= 256 && steps[i] == 1 && sizes[i] > 0;
  };
  // Rows of pages (tensor_map.h), or alternating rows of two arrays (row_map.h).
  const bool turns = rank == 5 && box[1] == 8 && box[2] == 2;
  const bool legal = (rank == 3 || turns) && reinterpret_cast<std::uintptr_t>(base) % 16 == 0 &&
                     all(rank - 1, stride) && all(rank, dimension) && box[rank - 1] == 1;
  if (!legal) return CUDA_ERROR_INVALID_VALUE;
  const lathe::cuda::PageMap map{
      .base = static_cast<const unsigned char*>(base),
      .page_stride = static_cast<std::int64_t>(strides[rank - 2]),
      .row_bytes = static_cast<std::int64_t>(strides[0]),
      .box_rows = turns ? 16 * std::int64_t{box[3]} : box[1],
      .element_bytes = size,
      .box_bytes = static_cast<int>(box[0]) * size,
      .page_rows = static_cast<std::int64_t>(turns ? 8 * sizes[3] : sizes[1]),
      .pages = static_cast<std::int64_t>(sizes[rank - 1]),
      .row_end = static_cast<std::int64_t>(sizes[0]) * size,
      .turn_stride = turns ? static_cast<std::int64_t>(strides[1]) : 0};
  static_assert(sizeof map <= sizeof *out);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *out = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
  if (found != nullptr) {
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
