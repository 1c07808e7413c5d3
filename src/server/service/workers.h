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
  /// that client has added.
  void add(std::uint64_t client, std::function<void()> job);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::uint64_t, std::deque<std::function<void()>>> jobs_;  // by client; no empty queue
  std::deque<std::uint64_t> turns_;                                  // the clients in jobs_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lathe
