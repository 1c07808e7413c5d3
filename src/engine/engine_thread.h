// EngineThread: an engine on a thread of its own, for callers on other threads. They put requests
// into its inbox and get their events once a step; the engine never waits for them.
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

/// A caller's name for a request. Callers number theirs and never reuse a number, so a late event
/// for a forgotten request finds nothing.
struct Ticket {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const Ticket&) const = default;
};

struct Submission {
  Ticket ticket;
  Request request;    // without sibling_of
  Ticket sibling_of;  // an earlier one with the same prompt; 0: none
};

/// What became of a request in one step: it started, got a token, ended, all of these, or was
/// rejected. Each further token of a step is an event of its own. An end and a rejection are its
/// last event.
struct TicketEvent {
  Ticket ticket;
  std::optional<Started> started;
  std::optional<SampledToken> token;
  std::vector<SampledToken> prompt_logprobs;  // with the first token, if they were asked for
  std::optional<Finished> finished;
  std::optional<Error> refused;  // Engine::submit()'s, or that the engine has failed
};

struct EngineNews {
  std::vector<TicketEvent> events;
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;
  std::int64_t tokens = 0;
  double seconds = 0;   // of the step
  EngineStats stats;    // after it
  bool failed = false;  // the engine's last: a step failed twice

  /// As new, but with its memory.
  void clear() {
    std::vector<TicketEvent> kept = std::move(events);
    kept.clear();
    *this = {};
    events = std::move(kept);
  }
};

class EngineThread {
 public:
  /// The engine is this thread's until the end. `on_news` runs on it after each step and must not
  /// wait; it gets every ticket's last event. It may move the news away and leave others in their
  /// place, whose memory serves the next step.
  EngineThread(Engine& engine, std::function<void(EngineNews&)> on_news);
  /// Ends after the step under way; open requests get no more events.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // From any thread. What one call puts in comes out together, in order.
  void submit(std::vector<Submission> requests);
  /// Unknown and finished requests are not an error.
  void cancel(std::vector<Ticket> tickets, FinishReason reason);
  /// Evicts what no request holds from the prefix cache. `done` runs on the engine's thread with
  /// the engine's state; nothing was evicted if requests were there.
  void flush_prefix_cache(std::function<void(EngineStats)> done);

  /// How long there has been work and no step has ended; 0 without work.
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
  // Nanoseconds of the steady clock when the work under way began; 0: none.
  std::atomic<std::int64_t> busy_since_{0};
  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace lathe
