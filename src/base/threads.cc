#include "base/threads.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace lathe {
namespace {

// Waiting a little before sleeping saves a wake-up of tens of microseconds between the many short loops of one layer.
constexpr int kSpins = 2000;

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable finished;
  std::atomic<std::uint64_t> round{0};  // a change means that there is a job, or that stop is set
  bool stop = false;
  Job job;
  std::int64_t tasks = 0;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> active{0};  // workers that have not left the current job
  std::vector<std::thread> workers;

  void work(int worker) {
    for (std::int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      job.call(job.body, t, worker);
    }
  }

  void loop(int worker) {
    std::uint64_t seen = 0;
    while (true) {
      for (int i = 0; i < kSpins && round.load(std::memory_order_acquire) == seen; ++i) relax();
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return round.load(std::memory_order_relaxed) != seen; });
        seen = round.load(std::memory_order_relaxed);
        if (stop) return;
      }
      work(worker);
      if (active.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex);
        finished.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : usable_cores()), state_(std::make_unique<State>()) {
  for (int w = 1; w < threads_; ++w) state_->workers.emplace_back([this, w] { state_->loop(w); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->round.fetch_add(1, std::memory_order_release);
  }
  state_->wake.notify_all();
  for (std::thread& t : state_->workers) t.join();
}

void ThreadPool::run_erased(std::int64_t tasks, Job job) {
  if (tasks <= 0) return;
  if (threads_ == 1 || tasks == 1) {
    for (std::int64_t t = 0; t < tasks; ++t) job.call(job.body, t, 0);
    return;
  }
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.job = job;
    s.tasks = tasks;
    s.next.store(0, std::memory_order_relaxed);
    s.active.store(threads_ - 1, std::memory_order_relaxed);
    s.round.fetch_add(1, std::memory_order_release);
  }
  s.wake.notify_all();
  s.work(0);
  for (int i = 0; i < kSpins && s.active.load(std::memory_order_acquire) != 0; ++i) relax();
  std::unique_lock lock(s.mutex);
  s.finished.wait(lock, [&] { return s.active.load(std::memory_order_acquire) == 0; });
}

}  // namespace lathe
