// LoadClient: many HTTP clients in a process of their own, so that their CPU time, memory and files
// are not counted as the server's.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace lathe {

/// The load on 127.0.0.1:port. Parts that are 0 or false are left out; the others run together
/// until streams, arrivals and seconds have ended.
struct LoadTask {
  int port = 0;
  // Streamed chat answers that begin together, at most 4000 connections a second.
  int streams = 0;
  int stream_tokens = 0;
  int leave_after = 0;   // clients close after this many events
  bool parsing = false;  // streams declare a tool
  // More streams, started at a fixed rate.
  int arrivals_per_second = 0;
  int arrival_tokens = 0;
  int prompt_bytes = 16;      // of all requests
  double seconds = 0;         // of arrivals and all below
  int closed_loop = 0;        // connections that ask for one token, whole, again and again
  int idle = 0;               // connections that ask once and stay
  bool probe_health = false;  // GET /health every 20 ms
  bool big_body = false;      // one request with a body of 16 MiB
  int churn = 0;              // clients that ask, leave, lag and err at random
  std::uint64_t seed = 1;
};

struct Percentiles {
  double p50 = 0, p99 = 0, max = 0;  // seconds
};

struct LoadResult {
  std::int64_t asked = 0;     // streams and arrivals, or requests of the closed loop
  std::int64_t complete = 0;  // with status 200 and every token
  std::int64_t tokens = 0;    // events with text
  std::int64_t bytes = 0;     // received
  double seconds = 0;
  Percentiles first_byte;  // of arrivals, or else of streams
  Percentiles health;
  Percentiles gap;       // between reads of a stream
  double left_at = 0;    // when the last of leave_after closed, steady clock
  int failed_errno = 0;  // of the last connection that failed
};

/// Ends this process with a line and kExitFailure: its clients have ended before their task has, as
/// an interrupt ends them or the system kills them. Without them there are no figures.
[[noreturn]] void end_without_clients();

class LoadClient {
 public:
  /// Forks, so call it before this process has threads. The child runs on core `cpu` (counted among
  /// those that this process may use) and ends with this object.
  explicit LoadClient(int cpu);
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  void start(const LoadTask& task);
  LoadResult wait();
  LoadResult run(const LoadTask& task) {
    start(task);
    return wait();
  }

 private:
  pid_t process_ = 0;
  int socket_ = -1;
};

/// Pins the calling thread and those that it starts to core `cpu`, counted from 0 among the cores
/// that the process may use. Does nothing if there are fewer.
void run_on_core(int cpu);

}  // namespace lathe
