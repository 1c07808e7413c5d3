// Scheduling decisions as pure functions of a few numbers per request.
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

/// Pages needed for `tokens` tokens.
constexpr std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// How requests use one kind of page: those of a layer group, or the slots of its state. A
/// request's list has an entry for every page_size tokens; entries without a page are holes.
/// Unbounded kinds have no holes.
struct PageRule {
  std::int64_t page_size = 1;  // tokens
  // Tokens before the last block boundary that a request needs to continue, or to resume at that
  // boundary; 0: all of them.
  std::int64_t resume_tokens = 0;
  std::int64_t most = kNoBound;  // most pages that one request holds at once
  // Most pages that a step takes, the last ones; others stay holes.
  std::int64_t per_step = kNoBound;
  // A step writes the contents of a partly filled page to another page, and the old one stays
  // intact until the step is over. True for states, which are replaced; keys are appended.
  bool rewrites = false;

  /// First entry that a request with `computed` tokens keeps.
  std::int64_t first_needed_entry(std::int64_t computed, std::int64_t block_tokens) const {
    if (resume_tokens == 0) return 0;
    return std::max<std::int64_t>(0, computed / block_tokens * block_tokens - resume_tokens) /
           page_size;
  }
  /// Entries that need no further page for tokens from `covered` on.
  std::int64_t final_entries(std::int64_t covered) const {
    return rewrites ? covered / page_size : pages_for(covered, page_size);
  }
  /// Pages to take for tokens [covered, end).
  std::int64_t new_pages(std::int64_t covered, std::int64_t end) const {
    if (end == covered) return 0;
    if (end == covered + 1) {  // a decode row, for which one division is enough
      return rewrites || covered % page_size == 0 ? std::min<std::int64_t>(1, per_step) : 0;
    }
    return std::min(pages_for(end, page_size) - final_entries(covered), per_step);
  }
};

/// A request as the scheduler sees it. computed < known, computed <= covered.
struct ScheduledRequest {
  std::int64_t known = 0;     // tokens of prompt and answer
  std::int64_t computed = 0;  // tokens with keys in the cache
  std::int64_t covered = 0;   // tokens that fit its pages
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
  // The youngest running request must give up its pages first; no request gets rows.
  bool preempt_youngest = false;
  std::int64_t prefill_rows_left = 0;
};

/// Rows of each running request in one step, oldest first: every decode gets its row, prefills
/// share limits.prefill_rows in order of age. `available`: [limits.pages] available pages; the
/// pages that the rows take are subtracted. If a request lacks pages the youngest is preempted. The
/// youngest itself, if a prefill, takes the rows that fit its pages, perhaps none; if a decode, it
/// is preempted. rows: [running].
Decision schedule_running(std::span<const ScheduledRequest> running, const ScheduleLimits& limits,
                          std::span<std::int64_t> available, std::span<std::int64_t> rows);

/// Whether the oldest waiting request may run: `available` pages suffice to finish the prefill of
/// `next` and of every running request, and to write the token after each. `available`:
/// [limits.pages], without held pages, those that `next` has from the prefix cache included.
bool admits(std::span<const ScheduledRequest> running, const ScheduledRequest& next,
            const ScheduleLimits& limits, std::span<const std::int64_t> available);

/// Rows of an admitted request's first step, at most `prefill_rows`: as many as fit the pages that
/// it may hold at once.
std::int64_t first_rows(const ScheduledRequest& next, const ScheduleLimits& limits,
                        std::int64_t prefill_rows);

/// How many of `wanted` drafts a request with pages for its `known` tokens may append: as many as
/// fit `available` pages [limits.pages], from which theirs are subtracted. The request already has
/// the pages that the step rewrites.
std::int64_t draft_rows(std::int64_t known, std::int64_t wanted, const ScheduleLimits& limits,
                        std::span<std::int64_t> available);

}  // namespace lathe
