// Scheduling decisions as pure functions of a few numbers per request.
//
// Requests are in the order of docs/engine.md, E2: earlier ones get pages first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "layout/pages/needed_tokens.h"

namespace lathe {

inline constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

/// Pages needed for `tokens` tokens.
constexpr std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// How requests use one kind of page: a layer group's pages, or the slots of its state. A request's
/// list has an entry for every page_size tokens; entries without a page are holes. Unbounded kinds
/// have no holes.
struct PageRule {
  std::int64_t page_size = 1;  // tokens
  // Tokens before the last block boundary that a request needs to continue, or to resume at that
  // boundary; 0: all of them.
  std::int64_t resume_tokens = 0;
  std::int64_t chunk_tokens = 0;  // as PrefixGroup::chunk_tokens
  std::int64_t most = kNoBound;   // most pages that one request holds at once
  // Most pages that a step allocates: those of the last entries; the entries before stay holes.
  std::int64_t per_step = kNoBound;
  // True for states: a step does not append to a partly filled page, as keys do, but writes the new
  // state to another page. The old page stays intact until the step is over.
  bool rewrites = false;

  /// The first entry that a request with `computed` tokens still needs.
  std::int64_t first_needed_entry(std::int64_t computed, std::int64_t block_tokens) const {
    if (resume_tokens == 0) return 0;
    const std::int64_t boundary = computed / block_tokens * block_tokens;
    return (boundary - needed_tokens(boundary, resume_tokens, chunk_tokens)) / page_size;
  }
  /// The number of first entries that get no other page when tokens after `covered` are added.
  std::int64_t final_entries(std::int64_t covered) const {
    return rewrites ? covered / page_size : pages_for(covered, page_size);
  }
  /// Pages to allocate for tokens [covered, end).
  std::int64_t new_pages(std::int64_t covered, std::int64_t end) const {
    if (end == covered) return 0;
    if (end == covered + 1) {  // a decode row: one division is enough
      return rewrites || covered % page_size == 0 ? std::min<std::int64_t>(1, per_step) : 0;
    }
    return std::min(pages_for(end, page_size) - final_entries(covered), per_step);
  }
};

/// A request as the scheduler sees it. computed < known, computed <= covered.
struct ScheduledRequest {
  std::int64_t known = 0;             // tokens of prompt and answer
  std::int64_t computed = 0;          // tokens with keys in the cache
  std::int64_t covered = 0;           // tokens that it has pages for
  bool answered = false;              // the answer has a token
  std::int64_t most_rows = kNoBound;  // of prefill
  bool ends = false;                  // the next token is its last, which has no row

  /// Whether its next row is a decode row: only the answer's last token is not computed. Everything
  /// else is prefill, even if a preempted request recomputes its answer.
  bool decodes() const { return answered && known - computed == 1; }
};

struct ScheduleLimits {
  std::span<const PageRule> pages;  // at least one
  std::int64_t block_tokens = 1;    // a request resumes at multiples of it
  std::int64_t prefill_rows = 1;    // of one step
};

struct Decision {
  // The last running request must give up its pages first; no request gets rows.
  bool preempt_last = false;
  std::int64_t prefill_rows_left = 0;
};

/// Rows of each running request in one step, first in order first: every decode gets its row,
/// prefills get what is left of limits.prefill_rows, at most their most_rows. If a request lacks
/// pages, the last one must be preempted. If the last one itself lacks them, a prefill gets only
/// the rows that fit its pages, perhaps none, and a decode is preempted. `available`:
/// [limits.pages] available pages, from which the pages of the rows are subtracted. rows:
/// [running].
Decision schedule_running(std::span<const ScheduledRequest> running, const ScheduleLimits& limits,
                          std::span<std::int64_t> available, std::span<std::int64_t> rows);

/// Shares `rows` rows between clients: evenly, and what one does not want goes to the others.
/// wanted: [clients], replaced by what each gets; their sum is then `rows`, or what was wanted if
/// that is less.
void share_rows(std::int64_t rows, std::span<std::int64_t> wanted);

/// Whether a waiting request may run: the available pages suffice to finish the prefill of
/// `next` and of every running request, and to write the token after each that goes on.
/// `available`: [limits.pages] pages that no request holds; pages that `next` got from the prefix
/// cache are held.
bool admits(std::span<const ScheduledRequest> running, const ScheduledRequest& next,
            const ScheduleLimits& limits, std::span<const std::int64_t> available);

/// Rows of an admitted request's first step, at most `prefill_rows` and what fits the pages that it
/// may hold at once.
std::int64_t first_rows(const ScheduledRequest& next, const ScheduleLimits& limits,
                        std::int64_t prefill_rows);

/// How many of `wanted` drafts a request with pages for its `known` tokens may append: as many as
/// fit `available` pages [limits.pages], from which their pages are subtracted. The request already
/// has the pages that the step rewrites.
std::int64_t draft_rows(std::int64_t known, std::int64_t wanted, const ScheduleLimits& limits,
                        std::span<std::int64_t> available);

}  // namespace lathe
