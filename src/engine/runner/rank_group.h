// RankGroup: the threads of the ranks that share a model. Rank 0 has the caller's thread, each
// other rank a thread of its own, which makes, uses and frees everything of its rank. One more
// thread, the watchdog, looks after steps that do not end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "engine/runner/rank_watch.h"
#include "kernels/communicator.h"

namespace lathe {

struct RankGroupOptions {
  // How long a thread looks for its next job before it sleeps. Waking it takes about 50 us, so a
  // GPU's rank should not fall asleep while the engine prepares a step.
  std::chrono::microseconds spin{50};
  RankWatch::Limits limits;
  std::chrono::milliseconds look_every{1000};
  std::function<RankWatch::Time()> now;  // empty: the steady clock
  // A rank of an aborted step does not come back, so its thread cannot be joined. Empty: prints the
  // error and ends the process with kRanksFailed.
  std::function<void(const Error&)> on_stuck;
};

/// The exit code of a process whose ranks have failed.
inline constexpr int kRanksFailed = 70;

class RankGroup {
 public:
  /// Starts a thread for each communicator but the first.
  explicit RankGroup(std::vector<std::unique_ptr<Communicator>> communicators,
                     RankGroupOptions options = {});
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  std::int32_t size() const { return static_cast<std::int32_t>(communicators_.size()); }
  Communicator& communicator(std::int32_t rank) {
    return *communicators_[static_cast<std::size_t>(rank)];
  }

  /// Calls body(rank), which returns a Result<void>, on every rank's thread and waits for all of
  /// them. Returns why the group was aborted, if it was, or else the error of the lowest rank. A
  /// body that throws aborts the group. Allocates nothing. Only one thread may call it.
  template <class Body>
  Result<void> run(Body&& body) {
    return run_job(job_of(body));
  }
  /// run() of a step, or of a part of one: the watchdog aborts the group when no rank finishes an
  /// exchange within the limit, and calls on_stuck if a rank does not return even then.
  template <class Body>
  Result<void> run_step(Body&& body) {
    step_.store(++steps_, std::memory_order_relaxed);
    Result<void> ok = run(body);
    step_.store(0, std::memory_order_relaxed);
    return ok;
  }
  /// run_step() on the caller's thread, for one rank after the other. No body may wait for another
  /// rank's. For waits on devices: a hand-over to each rank's thread and back costs more.
  template <class Body>
  Result<void> run_step_here(Body&& body) {
    step_.store(++steps_, std::memory_order_relaxed);
    Result<void> ok = run_job_here(job_of(body));
    step_.store(0, std::memory_order_relaxed);
    return ok;
  }

  /// While set, the ranks' threads look for their next job without sleeping. Set it while a GPU
  /// has a step to do, after which the next job comes at once.
  void stay_awake(bool awake) { awake_.store(awake, std::memory_order_relaxed); }

 private:
  struct Job {
    void* body = nullptr;
    Result<void> (*call)(void*, std::int32_t rank) = nullptr;
  };
  template <class Body>
  static Job job_of(Body& body) {
    return {&body, [](void* b, std::int32_t rank) -> Result<void> {
              return (*static_cast<std::remove_reference_t<Body>*>(b))(rank);
            }};
  }
  Result<void> run_job(const Job& job);
  Result<void> run_job_here(const Job& job);
  Result<void> joined_results();
  void work(std::int32_t rank);
  void wait_for_job(std::uint64_t done);
  void call(std::int32_t rank);
  void watch();
  void look(RankWatch& watch, std::uint64_t step);
  void give_up(std::uint64_t step);

  std::vector<std::unique_ptr<Communicator>> communicators_;
  RankGroupOptions options_;
  std::vector<Result<void>> results_;  // [ranks] each written by its rank
  Job job_;                            // the current one
  std::atomic<std::uint64_t> jobs_ = 0;
  std::atomic<std::int32_t> running_ = 0;  // ranks but the first that have not finished the job
  std::atomic<bool> awake_ = false;
  bool ends_ = false;
  std::mutex guard_;
  std::condition_variable changed_;
  // For the watchdog.
  std::uint64_t steps_ = 0;
  std::atomic<std::uint64_t> step_ = 0;        // that runs; 0: none
  std::vector<std::uint64_t> finished_;        // [ranks] exchanges, as last seen
  std::unique_ptr<std::atomic<bool>[]> busy_;  // [ranks] with the current job
  bool watch_ends_ = false;
  std::mutex watch_guard_;
  std::condition_variable watch_wake_;
  std::vector<std::thread> threads_;  // of ranks 1, 2, .., and the watchdog
};

}  // namespace lathe
