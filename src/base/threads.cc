#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/pause.h"
#include "base/process.h"

namespace lathe {
namespace {

// A layer has many short loops. Spinning this often before sleeping saves a wake-up of tens of
// microseconds between two of them.
constexpr int kSpins = 2000;

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Waits until `changes` differs from `old`: spins, then sleeps.
template <class T>
void await_change(const std::atomic<T>& changes, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (changes.load(std::memory_order_acquire) != old) return;
    pause_thread();
  }
  changes.wait(old, std::memory_order_acquire);
}

}  // namespace

// The caller waits for tasks, not for workers, so a worker that sleeps through a short loop delays
// nothing. A worker may therefore read a job that is over or is being replaced, and must not run
// it.
//
// `ticket` is one word with the job's number and the next task. A worker claims a task by a
// compare-and-swap from (job, task) to (job, task + 1). The caller makes the ticket odd (closed)
// before it replaces the job, and even afterwards. So if the compare-and-swap succeeds, the body,
// call and tasks that the worker read after the ticket belong to that job.
struct ThreadPool::State {
  static constexpr std::uint64_t kJob = std::uint64_t{1} << 32;
  static bool closed(std::uint64_t ticket) { return (ticket / kJob) % 2 != 0; }
  static std::int64_t task_of(std::uint64_t ticket) {
    return static_cast<std::int64_t>(ticket % kJob);
  }

  std::atomic<std::uint64_t> ticket{0};  // job number * kJob + next task; odd job: closed
  std::atomic<void*> body{nullptr};
  std::atomic<void (*)(void*, std::int64_t, int)> call{nullptr};
  std::atomic<std::int64_t> tasks{0};
  std::atomic<std::int32_t> unfinished{0};  // tasks of the job that have not returned yet
  std::atomic<std::uint32_t> jobs{0};       // changes when there is a new job or stop is set
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  MakersProcess process;
  std::mutex guard;
  std::exception_ptr failed;  // first exception of the job's tasks

  // A task that throws counts as returned, so the caller waits for the other tasks, which may still
  // use its data.
  void run(void (*function)(void*, std::int64_t, int), void* arguments, std::int64_t task,
           int worker) {
    try {
      function(arguments, task, worker);
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!failed) failed = std::current_exception();
    }
  }

  void work(int worker) {
    std::int32_t done = 0;
    std::uint64_t t = ticket.load(std::memory_order_acquire);
    while (!closed(t) && task_of(t) < tasks.load(std::memory_order_acquire)) {
      void* const arguments = body.load(std::memory_order_acquire);
      const auto function = call.load(std::memory_order_acquire);
      if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      run(function, arguments, task_of(t), worker);
      ++done;
      t = ticket.load(std::memory_order_acquire);
    }
    if (done == 0) return;
    if (unfinished.fetch_sub(done, std::memory_order_acq_rel) == done) unfinished.notify_one();
  }

  void loop(int worker) {
    while (!stop.load(std::memory_order_acquire)) {
      const std::uint32_t seen = jobs.load(std::memory_order_acquire);
      work(worker);
      if (!stop.load(std::memory_order_acquire)) await_change(jobs, seen);
    }
  }

  void end() {
    stop.store(true, std::memory_order_release);
    announce();
    for (std::thread& t : workers) t.join();
  }

  void announce() {
    jobs.fetch_add(1, std::memory_order_acq_rel);
    jobs.notify_all();
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : usable_cores()), state_(std::make_unique<State>()) {
  try {
    for (int w = 1; w < threads_; ++w) state_->workers.emplace_back([this, w] { state_->loop(w); });
  } catch (const std::system_error& e) {
    const std::size_t had = state_->workers.size() + 1;
    state_->end();
    throw std::system_error(
        e.code(), "threads: wanted " + std::to_string(threads_) + ", got " + std::to_string(had));
  }
}

ThreadPool::~ThreadPool() {
  if (state_->process.is_this()) {
    state_->end();
  } else {
    (void)state_.release();  // a thread that is neither joined nor there cannot be destroyed
  }
}

void ThreadPool::run_erased(std::int64_t tasks, Job job) {
  if (tasks <= 0) return;
  if (threads_ == 1 || tasks == 1) {
    for (std::int64_t t = 0; t < tasks; ++t) job.call(job.body, t, 0);
    return;
  }
  LATHE_CHECK(tasks <= INT32_MAX, "tasks of one loop");
  State& s = *state_;
  const std::uint64_t number = s.ticket.load(std::memory_order_relaxed) / State::kJob;
  s.ticket.store((number + 1) * State::kJob, std::memory_order_release);
  s.body.store(job.body, std::memory_order_release);
  s.call.store(job.call, std::memory_order_release);
  s.tasks.store(tasks, std::memory_order_release);
  s.unfinished.store(static_cast<std::int32_t>(tasks), std::memory_order_release);
  s.ticket.store((number + 2) * State::kJob, std::memory_order_release);
  s.announce();
  s.work(0);
  for (std::int32_t left; (left = s.unfinished.load(std::memory_order_acquire)) != 0;) {
    await_change(s.unfinished, left);
  }
  if (s.failed) std::rethrow_exception(std::exchange(s.failed, nullptr));
}

}  // namespace lathe
