// For lathe bench server: a scripted server with steps at a fixed rate, and a thread that sends the
// same bytes by send() alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "server/scripted/scripted_server.h"

namespace lathe {

struct SceneOptions {
  std::int64_t streams = 64;        // at once, at most
  std::int64_t tokens_each = 1024;  // of the cache
  double step_seconds = 0;          // 0: as fast as it goes
  std::string template_prefix;      // ScriptedOptions'
};

class ServerScene {
 public:
  explicit ServerScene(const SceneOptions& options);

  int port() const { return server_->port(); }
  Server& server() { return server_->server(); }
  /// Rows of all steps and of the last one.
  std::int64_t rows() const { return rows_; }
  std::int64_t last_rows() const { return last_rows_; }
  /// Steps that have begun since `time` (steady clock, seconds), of the last kStepsKept.
  std::int64_t steps_since(double time);
  /// Waits for a step with `rows` rows. False: none came within a minute.
  bool wait_for_rows(std::int64_t rows) const;

 private:
  void step(std::int64_t rows);

  // Keeping all would look like a leak in the memory that churn() measures.
  static constexpr std::size_t kStepsKept = 4096;

  double step_seconds_;
  double next_step_ = 0;
  std::atomic<std::int64_t> rows_ = 0, last_rows_ = 0;
  std::mutex mutex_;
  std::deque<double> begun_;  // when each of the last steps with rows began
  std::unique_ptr<ScriptedServer> server_;
};

/// Sends the bytes that the server would send, by send() alone: it parses and formats nothing, so
/// its CPU time is the system's share.
class BareSender {
 public:
  /// Each of `streams` clients gets `events` events, one a step.
  BareSender(int streams, int tokens, double step_seconds);
  ~BareSender();

  int port() const { return port_; }
  /// Seconds of CPU for one event, once all have been sent.
  double seconds_per_event();

 private:
  void run(int streams, int tokens, double step_seconds);

  int listener_ = -1;
  int port_ = 0;
  double seconds_per_event_ = 0;
  std::thread thread_;
};

/// Steady clock.
double seconds_now();
void sleep_seconds(double seconds);

}  // namespace lathe
