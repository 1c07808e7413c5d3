#include "engine/draft/drafting.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attn/draft_rows.h"

namespace lathe {

Result<void> check_drafts(const ModelPlan& plan, std::int64_t draft_tokens) {
  const std::string offered = fmt::format("{}", draft_tokens);
  if (draft_tokens < 1 || draft_tokens > kMaxDraftTokens) {
    return Error{ErrorCode::out_of_range, "--draft-tokens", fmt::format("1 to {}", kMaxDraftTokens),
                 offered, ""};
  }
  if (draft_tokens > plan.draft_tokens() && plan.has_state()) {
    return Error{ErrorCode::out_of_range, "--draft-tokens",
                 fmt::format("at most {}, what the plan was made for", plan.draft_tokens()),
                 offered, ""};
  }
  for (const GroupPlan& g : plan.groups) {
    if (!g.plan.phase(Phase::verify).routes.empty()) continue;
    return Error{ErrorCode::unsupported, "--draft", "a plan with a kernel for phase verify",
                 fmt::format("none in group {}", g.group.name), "--draft none"};
  }
  return {};
}

Drafting::Drafting(const DraftingOptions& options, const ModelPlan& plan,
                   const PageAllocator& pages, const OpsContext& ops)
    : drafter_(options.drafter),
      draft_tokens_(options.draft_tokens),
      overlap_(options.overlap),
      ops_(ops),
      step_rows_(plan.max_rows()),
      rules_(pages.rules().begin(), pages.rules().end()),
      block_tokens_(pages.block_tokens()),
      good_drafts_(static_cast<double>(std::max<std::int64_t>(2, options.draft_tokens))) {}

RequestDrafting Drafting::start() const {
  const double cost = drafter_ != nullptr ? drafter_->cost() : 0;
  RequestDrafting r;
  r.length = DraftLength(draft_tokens_, good_drafts_, cost, silence_);
  return r;
}

void Drafting::forget(RequestId id) {
  if (drafter_ != nullptr) drafter_->forget(id);
}

void Drafting::end(RequestId id, const RequestDrafting& r) {
  forget(id);
  silence_ = r.length.silence();
}

std::int64_t Drafting::bound(const DraftView& r, std::int64_t running) const {
  return std::min({r.state->length.wanted(), drafts_at(running), r.left - 1});
}

// Only drafters that cost nothing rest. For others DraftLength weighs the cost of each request's
// drafts, and one that reads rows could not draft after rows that it missed.
bool Drafting::rests(std::int64_t running) const {
  const bool overlaps = overlap_ && ops_.backend->overlaps();
  const bool free = !reads() && drafter_->cost() == 0;
  return overlaps && free && batch_.rests(running);
}

bool Drafting::begin_step(std::int64_t running) {
  batch_.step();
  asked_ = false;
  return drafter_ != nullptr && !rests(running);
}

std::span<const DraftRequest> Drafting::propose(std::span<const DraftView> requests,
                                                std::int64_t running) {
  proposals_.clear();
  const double row_share =
      draft_row_share(running, ops_.backend->memory().kind == MemoryKind::host);
  // Until checks have shown how good this drafter is, only a few requests of a large batch try it.
  constexpr std::int64_t kFirstChecks = 32, kFirstDrafters = 8;
  std::int64_t drafters =
      rows_are_dear(row_share) && stats_.checks < kFirstChecks ? kFirstDrafters : running;
  for (const DraftView& r : requests) {
    r.state->length.adapt(row_share, good_drafts_);
    if (r.decodes) skip(*r.state);
    const std::int64_t most = bound(r, running);
    if (most < 1 || (r.decodes && drafters-- <= 0)) continue;
    DraftRequest& proposal = proposals_.emplace_back(DraftRequest{r.id, r.tokens});
    proposal.cache_salt = r.cache_salt;
    if (r.decodes) {
      proposal.most = most;
      proposal.sampling = r.sampling;
    }
  }
  asked_ = !proposals_.empty();
  if (asked_) drafter_->propose(proposals_);
  return proposals_;
}

// A drafter that reads rows must read each row before the next step overwrites it, unless it has
// missed a row of that request: then the request has no more drafts.
bool Drafting::may_draft(const DraftView& r, std::int64_t running) const {
  if (drafter_ == nullptr || drafts_at(running) == 0 || rests(running)) return false;
  return reads() ? r.state->followed() == r.computed : bound(r, running) > 0;
}

void Drafting::skip(RequestDrafting& r) const {
  if (drafter_ != nullptr && r.length.wanted() == 0) r.length.skip();
}

void Drafting::took(RequestDrafting& r, std::int64_t drafted, std::int64_t accepted) {
  // A check's weight in the average that later requests start with; the first weigh more.
  const double weight = std::max(0.1, 1.0 / static_cast<double>(5 + stats_.checks));
  good_drafts_ += weight * (r.length.record(drafted, accepted) - good_drafts_);
  stats_.record(drafted, accepted);
}

// Whether reading rows from `from` on after rows up to `to` keeps no additional page.
bool Drafting::keeps_pages(std::int64_t from, std::int64_t to) const {
  return std::ranges::all_of(rules_, [&](const PageRule& rule) {
    return rule.first_needed_entry(from, block_tokens_) ==
           rule.first_needed_entry(to, block_tokens_);
  });
}

// While too many requests run for drafts, the drafter does not get the rows of answers, and a step
// in flight overwrites them; a request with missed rows has no drafts from then on. Rows of an
// answer that wants no draft are kept until it wants one, or until there are many of them.
void Drafting::add(const DraftView& r, const StepRows& rows, std::int64_t running,
                   RankedRunner& runner) {
  if (!reads()) return;
  RequestDrafting& state = *r.state;
  const bool drafts = drafts_at(running) > 0;
  const bool lost = state.followed() != rows.first ||
                    (!state.unread.empty() && !hidden()->has(state.oldest_keep));
  if (lost || runner.in_flight() || (!rows.prefill && !drafts)) return state.unread.clear();
  const std::int64_t n = r.computed - rows.first;
  const std::int64_t most = r.decodes ? bound(r, running) : 0;
  const bool waits = !rows.prefill && most < 1 && keeps_pages(state.read, r.computed);
  if (waits && keep(state, rows, n, runner)) return;
  ComputedRows& computed = computed_.emplace_back();
  computed.id = r.id;
  computed.tokens = r.tokens;
  computed.first = state.read;
  computed.hidden = state.unread;
  for (std::int64_t k = 0; k < n; ++k) computed.hidden.push_back(runner.hidden(rows.item, k));
  computed.pages = rows.pages;
  computed.prefill = rows.prefill;
  if (most > 0) {
    computed.most = most;
    computed.sampling = r.sampling;
  }
  computed_of_.push_back(&state);
}

// Keeps an item's first `n` rows to be read later: copies all decode rows of the step, which are
// its first, at once. Returns false if the request has too many rows kept, or has had them for too
// long.
bool Drafting::keep(RequestDrafting& r, const StepRows& rows, std::int64_t n,
                    RankedRunner& runner) {
  HiddenRows& hidden_rows = *hidden();
  const std::int64_t room = std::min(kUnreadRows, step_rows_ - 1 - draft_tokens_);
  if (std::ssize(r.unread) + n > room) return false;
  if (!r.unread.empty() && hidden_rows.keeps() - r.oldest_keep >= kUnreadRows) return false;
  if (!copy_) {
    if (rows.decode_rows > hidden_rows.sizes().kept) return false;
    copy_ = runner.keep_hidden(rows.decode_rows);
  }
  if (r.unread.empty()) r.oldest_keep = hidden_rows.keeps() - 1;
  for (std::int64_t k = 0; k < n; ++k) {
    r.unread.push_back(*copy_ + runner.hidden(rows.item, k) - hidden_rows.step_place(0));
  }
  return true;
}

void Drafting::end_step(std::int64_t decode_rows, std::int64_t accepted) {
  if (!computed_.empty()) {
    const bool ok = drafter_->read(computed_).ok();
    for (std::size_t i = 0; i < computed_.size(); ++i) {
      RequestDrafting& r = *computed_of_[i];
      if (ok) r.read = computed_[i].first + std::ssize(computed_[i].hidden);
      r.unread.clear();
    }
  }
  computed_.clear();
  computed_of_.clear();
  copy_.reset();
  if (std::exchange(asked_, false)) batch_.record(decode_rows, accepted);
}

}  // namespace lathe
