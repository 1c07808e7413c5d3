// StepGate: lets a test decide when each step of a scripted server's engine runs, and which ones
// fail.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "server/scripted/scripted_server.h"

namespace lathe {

class StepGate {
 public:
  /// Passes the first step, the server's warm-up, at once.
  Result<void> operator()(std::int64_t rows) {
    std::unique_lock lock(mutex_);
    rows_.push_back(rows);
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || may_pass_ > 0; });
    if (!open_) --may_pass_;
    if (fail_ > 0) {
      --fail_;
      return Error{ErrorCode::unsupported, "forward", "a step that works", "a test's choice", ""};
    }
    return {};
  }
  void pass(int steps) {
    set([&] { may_pass_ += steps; });
  }
  void open() {
    set([&] { open_ = true; });
  }
  void shut() {
    set([&] { open_ = false; });
  }
  void fail(int steps) {
    set([&] { fail_ = steps; });
  }
  /// Waits until `steps` steps have begun, not counting the warm-up.
  void wait_begun(std::size_t steps) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return rows_.size() >= steps + 1; });
  }
  std::size_t begun() {
    const std::lock_guard lock(mutex_);
    return rows_.size() - 1;
  }
  std::int64_t rows_of(std::size_t step) {
    const std::lock_guard lock(mutex_);
    return rows_.at(step + 1);
  }

 private:
  template <class Change>
  void set(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> rows_;
  int may_pass_ = 1;
  int fail_ = 0;
  bool open_ = false;
};

/// A scripted server; its steps wait at its gate.
struct GatedServer {
  explicit GatedServer(ScriptedOptions options = {}) {
    options.on_forward = [this](std::int64_t rows) { return gate(rows); };
    server.emplace(std::move(options));
  }
  ~GatedServer() { gate.open(); }
  int port() const { return server->port(); }

  StepGate gate;
  std::optional<ScriptedServer> server;
};

}  // namespace lathe
