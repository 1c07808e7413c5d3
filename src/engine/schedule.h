// The scheduler's decisions, as pure functions of a few numbers per request.
//
// Requests are served first come, first served: running ones are older than waiting ones, and pages
// go to the older first (docs/engine.md, E2 to E5).
#pragma once

#include <cstdint>
#include <span>

namespace lathe {

/// What the scheduler has to know of a request. computed < known, pages cover at least `computed`
/// tokens.
struct ScheduledRequest {
  std::int64_t known = 0;     // tokens of prompt and answer
  std::int64_t computed = 0;  // of those, how many have their keys in the cache
  std::int64_t pages = 0;     // held
  bool answered = false;      // the answer has a token

  /// One token, the last of the answer, is missing: a decode row. Everything else is prefill, a
  /// preempted request that recomputes its answer included.
  bool decodes() const { return answered && known - computed == 1; }
};

struct ScheduleLimits {
  std::int64_t page_size = 1;
  std::int64_t prefill_rows = 1;  // of one step
};

struct Schedule {
  // The youngest running request has to give up its pages first; no rows are given out.
  bool preempt_youngest = false;
  std::int64_t prefill_rows_left = 0;
};

/// Pages that hold `tokens` tokens.
constexpr std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// Rows of each running request, oldest first, in one step: every decode has its row, prefills
/// share limits.prefill_rows in order of age. `available`: pages that can be had. A request that
/// lacks pages has the youngest preempted, unless it is the youngest itself: then a prefill takes
/// the rows that its pages hold, perhaps none, and a decode is preempted. rows: [running].
Schedule schedule_running(std::span<const ScheduledRequest> running, const ScheduleLimits& limits,
                          std::int64_t available, std::span<std::int64_t> rows);

/// Whether the oldest waiting request may run: `available` pages are enough to finish the prefill
/// of `next` and of every running request, and to write the token after it. Pages held, `next`'s
/// from the prefix cache included, are not among `available`.
bool admits(std::span<const ScheduledRequest> running, const ScheduledRequest& next,
            const ScheduleLimits& limits, std::int64_t available);

}  // namespace lathe
