// RankGroup: the threads of the ranks that share a model. Rank 0 has the caller's thread, each
// other rank a thread of its own, which makes, uses and frees everything of its rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "kernels/communicator.h"

namespace lathe {

class RankGroup {
 public:
  /// Starts a thread for each communicator but the first.
  explicit RankGroup(std::vector<std::unique_ptr<Communicator>> communicators);
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
    return run_job({&body, [](void* b, std::int32_t rank) -> Result<void> {
                      return (*static_cast<std::remove_reference_t<Body>*>(b))(rank);
                    }});
  }

 private:
  struct Job {
    void* body = nullptr;
    Result<void> (*call)(void*, std::int32_t rank) = nullptr;
  };
  Result<void> run_job(const Job& job);
  void work(std::int32_t rank);
  void wait_for_job(std::uint64_t done);
  void call(std::int32_t rank);

  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<Result<void>> results_;  // [ranks] each written by its rank
  Job job_;                            // the current one
  std::atomic<std::uint64_t> jobs_ = 0;
  std::atomic<std::int32_t> running_ = 0;  // ranks but the first that have not finished the job
  bool ends_ = false;
  std::mutex guard_;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;  // of ranks 1, 2, ..
};

}  // namespace lathe
