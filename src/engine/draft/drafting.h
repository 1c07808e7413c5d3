// Drafting: the engine's side of speculation. It asks a drafter for guesses, decides how many each
// request may have, learns from those that were right, and hands the rows of steps to a drafter
// that reads hidden states.
//
// The engine puts drafts into a step and compares them with what it samples. Drafts change no token
// (docs/engine.md, E1), so the engine can be read as if there were none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_length.h"
#include "engine/draft/draft_stats.h"
#include "engine/draft/drafter.h"
#include "engine/runner/ranked_runner.h"
#include "engine/schedule/page_allocator.h"
#include "kernels/context.h"
#include "plan/model_plan.h"

namespace lathe {

/// Errors: a number of drafts that no plan or not this plan allows; a plan without a kernel for
/// phase verify.
Result<void> check_drafts(const ModelPlan& plan, std::int64_t draft_tokens);

/// What drafting keeps of one request, from submit() on.
struct RequestDrafting {
  DraftLength length;
  std::int64_t read = 0;  // tokens that the drafter has read the rows of
  // [rows] The rows after those, copied for the drafter to read later: places in HiddenRows.
  std::vector<std::int32_t> unread;
  std::int64_t oldest_keep = 0;  // number of the HiddenRows::keep() that copied the first of them

  /// The request continues after `computed` tokens that have all their keys.
  void restart(std::int64_t computed) {
    read = computed;
    unread.clear();
  }
  /// Tokens that were read or can still be.
  std::int64_t followed() const { return read + std::ssize(unread); }
};

/// A running request, as drafting sees it.
struct DraftView {
  RequestId id;
  RequestDrafting* state = nullptr;
  std::span<const std::int32_t> tokens;  // prompt and answer
  std::int64_t computed = 0;             // tokens with keys in the cache
  std::int64_t left = 0;                 // tokens that the answer may still have; 0: forced
  bool decodes = false;                  // its next row is a decode row
  SampleArgs sampling = {};              // where it decodes: of the token after `tokens`
  std::uint64_t cache_salt = 0;          // Request's
};

/// A request's rows in the step that was just collected.
struct StepRows {
  std::size_t item = 0;                        // in the runner's batch
  std::int64_t first = 0;                      // position of the first row
  bool prefill = false;                        // else rows of an answer
  std::int64_t decode_rows = 0;                // first rows of the step, of all that decode
  std::span<const std::vector<PageId>> pages;  // [layer groups] of the request
};

struct DraftingOptions {
  Drafter* drafter = nullptr;  // outlives the engine; null: no drafts
  std::int64_t draft_tokens = 0;
  bool overlap = true;  // as EngineOptions
};

class Drafting {
 public:
  /// What `ops` points to must outlive it.
  Drafting(const DraftingOptions& options, const ModelPlan& plan, const PageAllocator& pages,
           const OpsContext& ops);

  /// Where the model's steps leave their hidden states; null: nobody reads them.
  HiddenRows* hidden() const { return drafter_ != nullptr ? drafter_->hidden() : nullptr; }
  /// Whether the drafter reads hidden states, and so has keys that are written after the model's.
  bool reads() const { return hidden() != nullptr; }
  const DraftStats& stats() const { return stats_; }

  /// The state of a new request.
  RequestDrafting start() const;
  /// The request was preempted.
  void forget(RequestId id);
  /// The request has ended.
  void end(RequestId id, const RequestDrafting& r);

  /// Of a request's `computed` tokens, those with all keys, a draft layer's included.
  std::int64_t complete(const RequestDrafting& r, std::int64_t computed) const {
    return reads() ? std::min(computed, r.read) : computed;
  }
  /// The first row that the model or a drafter that follows it has yet to read. A drafter that has
  /// missed rows of a request reads no more of it.
  std::int64_t next_row(const RequestDrafting& r, std::int64_t computed) const {
    return reads() && r.followed() == computed ? r.read : computed;
  }

  /// Begins a step. Returns whether requests should be asked for drafts.
  bool begin_step(std::int64_t running);
  /// Drafts of the running requests with rows in the step, oldest first, except forced answers.
  /// `sampling` must be set. The answers keep that order; those that wanted none are missing.
  std::span<const DraftRequest> propose(std::span<const DraftView> requests, std::int64_t running);

  /// Whether a request with a decode row in flight may have drafts after it, so that the next step
  /// must wait for results.
  bool may_draft(const DraftView& r, std::int64_t running) const;
  /// Begins a step that starts before the results of the one in flight, and so has no drafts.
  void begin_step_ahead() { batch_.step(); }
  /// Counts a step of a request that wants no drafts. After some such steps it wants one again.
  void skip(RequestDrafting& r) const;

  /// `accepted` of `drafted` >= 1 drafts were right.
  void took(RequestDrafting& r, std::int64_t drafted, std::int64_t accepted);
  /// Passes rows to the drafter, if it reads them, at end_step() or later.
  void add(const DraftView& r, const StepRows& rows, std::int64_t running, RankedRunner& runner);
  /// Ends a step: lets the drafter read the rows that were added. A failure there costs drafts
  /// alone. `decode_rows`: without drafts. The views' requests must still exist.
  void end_step(std::int64_t decode_rows, std::int64_t accepted);

 private:
  // Most drafts of a request in its next step, while `running` requests run; 0 or less: none. The
  // answer's last token needs no row.
  std::int64_t bound(const DraftView& r, std::int64_t running) const;
  bool rests(std::int64_t running) const;
  bool keeps_pages(std::int64_t from, std::int64_t to) const;
  bool keep(RequestDrafting& r, const StepRows& rows, std::int64_t n, RankedRunner& runner);

  Drafter* drafter_;
  std::int64_t draft_tokens_;
  bool overlap_;
  OpsContext ops_;
  std::int64_t step_rows_;       // most of a step
  std::vector<PageRule> rules_;  // [kinds of page]
  std::int64_t block_tokens_;

  double good_drafts_;    // moving average of DraftLength over requests
  DraftSilence silence_;  // as the last request had it at its end
  BatchDrafts batch_;
  DraftStats stats_;

  // The current step.
  bool asked_ = false;  // requests were asked for drafts
  std::vector<DraftRequest> proposals_;
  std::vector<ComputedRows> computed_;         // rows to read
  std::vector<RequestDrafting*> computed_of_;  // [computed_]
  std::optional<std::int32_t> copy_;  // copied place of the step's first row, if rows are kept
};

}  // namespace lathe
