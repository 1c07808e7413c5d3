// Workers: threads for long jobs that need neither the engine nor a socket: JSON, templates,
// tokenising.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lathe {

class Workers {
 public:
  explicit Workers(int threads);
  /// Drops jobs that have not started.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Clients take turns: one's jobs wait behind at most one job of each other client, however many
  /// that client has added. `long_one`: it may take seconds; of several threads one is left to
  /// other jobs.
  void add(std::uint64_t client, bool long_one, std::function<void()> job);

 private:
  using Key = std::pair<std::uint64_t, bool>;  // a client, and whether the jobs are long
  void run();
  std::deque<Key>::iterator find_turn();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Key, std::deque<std::function<void()>>> jobs_;  // no empty queue has a turn
  std::deque<Key> turns_;                                  // the keys of jobs_
  std::size_t long_ones_ = 0;                              // that run
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lathe
