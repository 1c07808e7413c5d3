#include "kernels/cuda/fake/fake_runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace lathe::cuda::fake {
namespace {

constexpr std::size_t kWorkStack = 1 << 20;

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

}  // namespace lathe::cuda::fake
