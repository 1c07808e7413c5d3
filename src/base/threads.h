// ThreadPool: workers that stay, and one parallel loop over tasks. Results must not depend on which
// worker takes which task; a task writes what belongs to it and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace lathe {

class ThreadPool {
 public:
  /// `threads` workers including the calling thread; 0 = one per core that this process may use.
  /// Throws std::system_error where the system gives fewer.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls body(task, worker) for every task of 0 .. tasks-1, each once, on any worker of
  /// 0 .. threads()-1, and returns when all have returned. Tasks start in ascending order, so the
  /// longest belong first. Allocates nothing. A body must not call run() of the same pool; the
  /// first that one throws is thrown here once all have returned. One caller at a time.
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
