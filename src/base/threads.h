// ThreadPool: permanent worker threads and one parallel loop over tasks. Any worker may run any
// task, and results must not depend on which: a task writes only data of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace lathe {

class ThreadPool {
 public:
  /// Makes `threads` workers, the calling thread included; 0: one per core that this process may
  /// use. Throws std::system_error if the system allows fewer.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls body(task, worker) once for every task in [0, tasks), on workers in [0, threads()), and
  /// returns when all calls have returned. Tasks start in ascending order, so put the longest
  /// first. Allocates nothing. The body must not call run() of the same pool. If calls throw, run()
  /// throws the first exception after all calls have returned. Only one thread may be in run() at a
  /// time.
  template <class Body>
  void run(std::int64_t tasks, Body&& body) {
    run_erased(tasks, {&body, [](void* b, std::int64_t task, int worker) {
                         (*static_cast<std::remove_reference_t<Body>*>(b))(task, worker);
                       }});
  }

 private:
  struct Job {
    void* body = nullptr;
    void (*call)(void*, std::int64_t, int) = nullptr;
  };
  void run_erased(std::int64_t tasks, Job job);

  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
