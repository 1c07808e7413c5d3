#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace lathe {
namespace {

// Most logits of a step for rows that only score a prompt.
constexpr std::int64_t kScoredLogitBytes = std::int64_t{64} << 20;

}  // namespace

ScheduleLimits Engine::limits() const {
  return {pages_.rules(), pages_.block_tokens(), options_.chunked_prefill_size};
}

void Engine::describe_running() {
  scheduled_.clear();
  for (const SequencePtr& r : running_) scheduled_.push_back(r->scheduled());
  rows_.assign(running_.size(), 0);
}

void Engine::count_available() {
  available_.clear();
  for (std::size_t k = 0; k < pages_.rules().size(); ++k) available_.push_back(pages_.available(k));
}

// Fills rows_ for running_, with pages for all of them. A preemption changes what is available, so
// all rows are decided anew. This ends: each turn has one request fewer, and the first one alone
// always fits (check_fits(), E3).
void Engine::schedule(StepReport& report) {
  make_room(report);
  order_running();
  share_prefill();
  describe_running();
  count_available();
  Decision decided = schedule_running(scheduled_, limits(), available_, rows_);
  while (decided.preempt_last) {
    LATHE_CHECK(running_.size() > 1, "an accepted request does not fit an empty pool");
    preempt(*running_.back(), report);
    describe_running();
    count_available();
    decided = schedule_running(scheduled_, limits(), available_, rows_);
  }
  const std::int64_t row_bytes = std::int64_t{4} * model_->config().vocab;
  scored_rows_left_ = std::max<std::int64_t>(1, kScoredLogitBytes / row_bytes);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& r = *running_[i];
    rows_[i] = cap_scored_rows(r, cap_at_parting(r, rows_[i]));
    if (rows_[i] == 0) continue;
    scheduled_[i].covered = r.computed + rows_[i];
    pages_.extend(r.computed, scheduled_[i].covered, r.pages);
  }
  admit(decided.prefill_rows_left, report);
  if (drafting_.begin_step(std::ssize(running_))) add_drafts();
}

// A preempted request keeps its tokens. Its full pages go to the prefix cache, where it may find
// them again (E7).
void Engine::preempt(Sequence& victim, StepReport& report) {
  // The last one is the usual victim.
  const auto at = std::find_if(running_.rbegin(), running_.rend(),
                               [&](const SequencePtr& r) { return r.get() == &victim; });
  SequencePtr r = std::move(*at);
  running_.erase(std::next(at).base());
  publish(*r);
  give_up_pages(*r);
  drafting_.forget(r->id);
  ++r->preemptions;
  ++report.preemptions;
  --r->client->running;
  add_waiting(std::move(r));
}

// Ends a chunk less than a block after the boundary where a prompt parts from a cached one. Then
// the boundary is the last one that the step passes, so it has a state there, and pages before
// windows are still held: publish_partings() caches both for the next request that parts there.
std::int64_t Engine::cap_at_parting(const Sequence& r, std::int64_t rows) const {
  const bool passes = r.computed + rows >= r.parting + pages_.block_tokens();
  return r.computed < r.parting && passes ? r.parting - r.computed : rows;
}

// Cuts the rows of a request that scores its prompt to the logits that are left in this step: a row
// of logits has a number for every token of the vocabulary.
std::int64_t Engine::cap_scored_rows(const Sequence& r, std::int64_t rows) {
  if (!r.scores()) return rows;
  const std::int64_t first = std::max(r.computed, r.next_scored);
  const std::int64_t end = std::min(r.computed + rows, r.prompt - 1);
  const std::int64_t scored = std::max<std::int64_t>(0, end - first);
  if (scored > scored_rows_left_) rows = first + scored_rows_left_ - r.computed;
  scored_rows_left_ -= std::min(scored, scored_rows_left_);
  return rows;
}

// Waiting is safe: the sibling runs and makes progress (E3). The client's requests after this one
// wait, too (E2), but the sibling's prefill uses the rows of the step anyway.
bool Engine::waits_for_sibling(const Sequence& r) const {
  if (!options_.prefix_cache || r.sibling_of.value == 0) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const SequencePtr& s) {
    return s->id == r.sibling_of && s->answered() == 0;
  });
}

// Admits waiting requests in order while admits() allows it. A request that was preempted for pages
// in this step needs more than it gave up, so it is refused here, unless other requests have put
// its pages back into the prefix cache (E6).
void Engine::admit(std::int64_t prefill_rows, StepReport& report) {
  no_room_ = {};
  while (waiting_ > 0 && prefill_rows > 0 && std::ssize(running_) < options_.max_running_requests) {
    Client* const client = next_client(shares_rows_);
    if (client == nullptr) return;
    Sequence& r = *client->waiting.front();
    // The last known token is always computed, for its logits, and so are rows that score the
    // prompt.
    const std::int64_t match = r.scores() ? r.next_scored : r.known() - 1;
    const CachedTokens cached = match > 0 ? pages_.match(r.tokens, match, r.pages) : CachedTokens();
    r.computed = cached.tokens;
    r.parting = cached.known > cached.tokens ? cached.known : 0;
    const auto fits = [&] {
      count_available();
      return admits(scheduled_, r.scheduled(), limits(), available_);
    };
    // The page to copy from is one more than a request may need alone.
    bool admitted = fits();
    if (!admitted && r.pages.copied > 0) {
      r.computed -= pages_.drop_copies(r.pages);
      admitted = fits();
    }
    if (!admitted) {
      give_up_pages(r);
      no_room_ = r.id;
      return;
    }
    const std::int64_t share = shares_rows_ ? std::min(prefill_rows, client->rows) : prefill_rows;
    const std::int64_t most = first_rows(r.scheduled(), limits(), share);
    const std::int64_t rows = cap_scored_rows(r, cap_at_parting(r, most));
    if (rows == 0) {
      give_up_pages(r);
      no_room_ = r.id;
      return;
    }
    ++report.admitted;
    report.cached_tokens += r.computed;
    if (!r.admitted_before) {
      r.cached = r.computed;
      report.started.push_back({r.id, r.computed});
    }
    r.admitted_before = true;
    r.trimmed = r.computed;
    r.drafting.restart(r.computed);
    pages_.extend(r.computed, r.computed + rows, r.pages);
    prefill_rows -= rows;
    if (shares_rows_) client->rows -= rows;
    rows_.push_back(rows);
    scheduled_.push_back(r.scheduled());
    scheduled_.back().covered += rows;
    add_running(take_waiting(*client));
  }
}

}  // namespace lathe
