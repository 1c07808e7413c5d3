// EngineThread: an engine on its own thread, for callers on other threads. They put requests into
// its inbox and get events once per step; the engine never waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace lathe {

/// The caller's number for a request. Callers never reuse one, so a late event for a forgotten
/// request matches nothing.
struct Ticket {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const Ticket&) const = default;
};

struct Submission {
  Ticket ticket;
  Request request;    // without sibling_of
  Ticket sibling_of;  // an earlier request with the same prompt; 0: none
};

/// A request's progress in one step: it started, got a token, ended, any of these, or was rejected.
/// Further tokens of a step are separate events. An end or a rejection is its last event.
struct TicketEvent {
  Ticket ticket;
  std::optional<Started> started;
  std::optional<SampledToken> token;
  std::vector<SampledToken> prompt_logprobs;  // with the first token, if requested
  std::optional<Finished> finished;
  std::optional<Error> refused;  // Engine::submit()'s error, or that the engine has failed
};

struct EngineNews {
  std::vector<TicketEvent> events;
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;
  std::int64_t tokens = 0;
  double seconds = 0;        // duration of the step
  EngineStats stats;         // after it
  bool failed = false;       // a step failed twice; this is the engine's last news
  std::optional<Error> why;  // it failed

  /// Resets everything but keeps the memory.
  void clear() {
    std::vector<TicketEvent> kept = std::move(events);
    kept.clear();
    *this = {};
    events = std::move(kept);
  }
};

class EngineThread {
 public:
  /// The thread owns the engine until it ends. `on_news` runs on the thread after each step and
  /// must not block; it gets every ticket's last event. It may swap the news with an old object, so
  /// that the old one's memory is reused.
  EngineThread(Engine& engine, std::function<void(EngineNews&)> on_news);
  /// Ends after the current step; open requests get no more events.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // From any thread. Items of one call are handled together, in order.
  void submit(std::vector<Submission> requests);
  /// Unknown and finished requests are ignored.
  void cancel(std::vector<Ticket> tickets, FinishReason reason);
  /// Evicts the prefix cache unless there are requests. `done` runs on the engine's thread with the
  /// engine's state afterwards.
  void flush_prefix_cache(std::function<void(EngineStats)> done);

  /// Time since the last step ended or work arrived, whichever is later; 0 without work.
  std::chrono::nanoseconds stuck_for() const;

 private:
  struct Cancel {
    Ticket ticket;
    FinishReason reason;
  };
  struct Inbox {
    std::vector<Submission> submit;
    std::vector<Cancel> cancel;
    std::vector<std::function<void(EngineStats)>> flush;
    bool stop = false;
    bool empty() const { return submit.empty() && cancel.empty() && flush.empty() && !stop; }
  };
  void run();
  void apply(Inbox& inbox, EngineNews& news);
  Result<RequestId> submit(Request request);
  bool step(EngineNews& news);
  void take(StepReport report, EngineNews& news);
  void fail(const Error& error, EngineNews& news);

  Engine* engine_;  // null: a step threw, and its state is unknown
  std::function<void(EngineNews&)> on_news_;
  std::unordered_map<std::uint64_t, RequestId> requests_;  // by ticket
  std::unordered_map<std::uint64_t, Ticket> tickets_;      // by request
  std::optional<Error> failed_;

  std::mutex mutex_;
  std::condition_variable wake_;
  Inbox inbox_;
  // Steady-clock nanoseconds when the current work began; 0: none.
  std::atomic<std::int64_t> busy_since_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lathe
