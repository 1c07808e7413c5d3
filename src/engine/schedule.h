// The scheduler's decisions, as pure functions of a few numbers per request.
//
// Requests are served first come, first served: running ones are older than waiting ones, and pages
// go to the older first (docs/engine.md, E2 to E5).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

namespace lathe {

inline constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

/// Pages that hold `tokens` tokens.
constexpr std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// How the requests of an engine use one kind of page: those of a layer group, or the slots of its
/// state. A request's list has an entry for every page_size tokens; entries that it does without
/// are holes. Without a bound every entry is a page.
struct PageRule {
  std::int64_t page_size = 1;  // tokens
  // Tokens before the last block boundary that a request still needs, to continue and to resume at
  // that boundary; 0: all of them.
  std::int64_t kept = 0;
  std::int64_t most = kNoBound;  // pages that one request holds at once
  // Pages that a step takes at most, the last ones; others stay holes.
  std::int64_t per_step = kNoBound;
  // A step rewrites a page that tokens have begun to fill to a new one, as the old one must stay
  // intact until the step is over: states are replaced, where keys are added.
  bool rewrites = false;

  /// First entry that a request with `computed` tokens keeps.
  std::int64_t first_kept(std::int64_t computed, std::int64_t block_tokens) const {
    if (kept == 0) return 0;
    return std::max<std::int64_t>(0, computed / block_tokens * block_tokens - kept) / page_size;
  }
  /// Entries that need no page for tokens from `covered` on.
  std::int64_t settled(std::int64_t covered) const {
    return rewrites ? covered / page_size : pages_for(covered, page_size);
  }
  /// Pages to take for tokens from `covered` on up to `end`.
  std::int64_t new_pages(std::int64_t covered, std::int64_t end) const {
    if (end == covered) return 0;
    return std::min(pages_for(end, page_size) - settled(covered), per_step);
  }
};

/// What the scheduler must know about a request. computed < known, computed <= covered.
struct ScheduledRequest {
  std::int64_t known = 0;     // tokens of prompt and answer
  std::int64_t computed = 0;  // of those, how many have their keys in the cache
  std::int64_t covered = 0;   // tokens that its pages have room for
  bool answered = false;      // the answer has a token

  /// One token, the last of the answer, is missing: a decode row. Everything else is prefill, a
  /// preempted request that recomputes its answer included.
  bool decodes() const { return answered && known - computed == 1; }
};

struct ScheduleLimits {
  std::span<const PageRule> pages;  // at least one
  std::int64_t block_tokens = 1;    // a request resumes at multiples of it
  std::int64_t prefill_rows = 1;    // of one step
};

struct Decision {
  // The youngest running request has to give up its pages first; no request gets rows.
  bool preempt_youngest = false;
  std::int64_t prefill_rows_left = 0;
};

/// Rows of each running request, oldest first, in one step: every decode has its row, prefills
/// share limits.prefill_rows in order of age. `available`: [limits.pages] available pages, from
/// which those that the rows take are subtracted. A request that lacks pages has the youngest
/// preempted, unless it is the youngest itself: then a prefill takes the rows that its pages hold,
/// perhaps none, and a decode is preempted. rows: [running].
Decision schedule_running(std::span<const ScheduledRequest> running, const ScheduleLimits& limits,
                          std::span<std::int64_t> available, std::span<std::int64_t> rows);

/// Whether the oldest waiting request may run: `available` pages are enough to finish the prefill
/// of `next` and of every running request, and to write the token after it. Pages held, `next`'s
/// from the prefix cache included, are not among `available`: [limits.pages].
bool admits(std::span<const ScheduledRequest> running, const ScheduledRequest& next,
            const ScheduleLimits& limits, std::span<const std::int64_t> available);

/// Rows of the first step of a request that admits() let in, at most `prefill_rows`: as many as the
/// pages hold that it may hold at once.
std::int64_t first_rows(const ScheduledRequest& next, const ScheduleLimits& limits,
                        std::int64_t prefill_rows);

/// Drafts, at most `wanted`, that a request with pages for its `known` tokens may put after them:
/// as many as `available` pages hold, from which theirs are subtracted: [limits.pages]. Pages that
/// the step rewrites are among those that it has.
std::int64_t draft_rows(std::int64_t known, std::int64_t wanted, const ScheduleLimits& limits,
                        std::span<std::int64_t> available);

}  // namespace lathe
