// What a step holds and what becomes of its results: schedule, batch, tokens.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attn/draft_rows.h"
#include "base/check.h"
#include "engine/engine.h"
#include "model/layers/draft_layer.h"

namespace lathe {
namespace {

constexpr std::int64_t kScoredLogitBytes = std::int64_t{64} << 20;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

ScheduleLimits Engine::limits() const {
  return {pages_.rules(), pages_.block_tokens(), options_.chunked_prefill_size};
}

void Engine::describe_running() {
  scheduled_.clear();
  for (const ActivePtr& r : running_) scheduled_.push_back(r->scheduled());
  rows_.assign(running_.size(), 0);
}

// A row of logits is a whole vocabulary, so a step holds few rows that only score a prompt. Cuts a
// scoring request's rows to that limit.
std::int64_t Engine::cap_scored_rows(const Active& r, std::int64_t rows) {
  if (!r.scores()) return rows;
  const std::int64_t first = std::max(r.computed, r.next_scored);
  const std::int64_t end = std::min(r.computed + rows, r.prompt - 1);
  const std::int64_t scored = std::max<std::int64_t>(0, end - first);
  if (scored > scored_rows_left_) rows = first + scored_rows_left_ - r.computed;
  scored_rows_left_ -= std::min(scored, scored_rows_left_);
  return rows;
}

void Engine::count_available() {
  available_.clear();
  for (std::size_t k = 0; k < pages_.rules().size(); ++k) available_.push_back(pages_.available(k));
}

void Engine::give_up_pages(Active& r) {
  pages_.release(r.pages);
  r.computed = r.read = r.settled = 0;
  r.unread.clear();
}

// Caches full pages whose keys are complete, a draft layer's included.
void Engine::publish(Active& r) {
  const std::int64_t whole = drafter_reads() ? std::min(r.computed, r.read) : r.computed;
  pages_.publish(std::span(r.tokens).first(at(whole)), r.pages);
}

// Keeps its tokens; its full pages go to the prefix cache, where it may find them again (E7).
void Engine::preempt_youngest(StepReport& report) {
  ActivePtr r = std::move(running_.back());
  running_.pop_back();
  publish(*r);
  give_up_pages(*r);
  if (options_.drafter != nullptr) options_.drafter->forget(r->id);
  ++r->preemptions;
  ++report.preemptions;
  waiting_.push_front(std::move(r));
}

// Fills rows_ for running_, with pages for all of them.
void Engine::schedule(StepReport& report) {
  describe_running();
  count_available();
  Decision decided = schedule_running(scheduled_, limits(), available_, rows_);
  while (decided.preempt_youngest) {
    LATHE_CHECK(running_.size() > 1, "an accepted request does not fit an empty pool");
    preempt_youngest(report);
    describe_running();
    count_available();
    decided = schedule_running(scheduled_, limits(), available_, rows_);
  }
  const std::int64_t row_bytes = std::int64_t{4} * model_->config().vocab;
  scored_rows_left_ = std::max<std::int64_t>(1, kScoredLogitBytes / row_bytes);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Active& r = *running_[i];
    rows_[i] = cap_scored_rows(r, rows_[i]);
    if (rows_[i] == 0) continue;
    scheduled_[i].covered = r.computed + rows_[i];
    pages_.extend(r.computed, scheduled_[i].covered, r.pages);
  }
  admit(decided.prefill_rows_left, report);
  if (options_.drafter != nullptr) add_drafts();
}

// Adds drafts of decoding requests, oldest first, in pages that are left in this step and that the
// prefix cache does not hold: drafts preempt nobody, delay no admission and evict nothing.
void Engine::add_drafts() {
  batch_drafts_.step();
  asked_ = false;
  if (drafts_rest()) return;
  proposals_.clear();
  proposing_.clear();
  const double row_share =
      draft_row_share(std::ssize(running_), ops_.backend->memory().kind == MemoryKind::host);
  // Until checks have shown what this drafter is worth, few requests of a large batch pay for it.
  constexpr std::int64_t kFirstChecks = 32, kFirstDrafters = 8;
  std::int64_t drafters = rows_are_dear(row_share) && sums_.drafts.checks < kFirstChecks
                              ? kFirstDrafters
                              : std::ssize(running_);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Active& r = *running_[i];
    if (rows_[i] == 0 || !r.forced.empty()) continue;
    const bool decodes = scheduled_[i].decodes();
    r.draft_length.adapt(row_share, good_drafts_);
    if (decodes && r.draft_length.wanted() == 0) r.draft_length.skip();
    const std::int64_t most = draft_bound(r);
    if (most < 1 || (decodes && drafters-- <= 0)) continue;
    DraftRequest& proposal = proposals_.emplace_back(DraftRequest{r.id, r.tokens});
    if (decodes) {
      proposal.most = most;
      proposal.sampling = sampling_of(r, 0);
    }
    proposing_.push_back(i);
  }
  if (proposals_.empty()) return;
  asked_ = true;
  options_.drafter->propose(proposals_);
  for (std::size_t k = 0; k < available_.size(); ++k) available_[k] = pages_.free(k);
  for (std::size_t p = 0; p < proposals_.size(); ++p) {
    take_proposal(*running_[proposing_[p]], proposals_[p], rows_[proposing_[p]]);
  }
}

// Most drafts of a request in its next step; an answer's last token needs no row.
std::int64_t Engine::draft_bound(const Active& r) const {
  if (!r.forced.empty()) return 0;
  return std::min(
      {r.draft_length.wanted(), drafts_at(std::ssize(running_)), r.limit - r.answered() - 1});
}

// Whether a decode row in flight may have drafts behind it. A drafter that reads rows has none of a
// request once it has missed one, and needs each of the others before the next step overwrites it.
bool Engine::may_draft(const Active& r) const {
  if (drafter_reads()) return r.read + std::ssize(r.unread) == r.computed;
  return draft_bound(r) > 0;
}

// A drafter whose guesses take work knows from its own requests whether they pay, and one that
// reads rows has none for those that it missed.
bool Engine::drafts_rest() const {
  const bool overlaps = options_.overlap && ops_.backend->overlaps();
  const bool free = !drafter_reads() && options_.drafter->cost() == 0;
  return overlaps && free && batch_drafts_.rests(std::ssize(running_));
}

// Takes drafts up to the first that is outside the vocabulary or would end the answer, which needs
// no row, and only as many as find pages.
void Engine::take_proposal(Active& r, const DraftRequest& proposal, std::int64_t& rows) {
  if (proposal.drafts.empty()) return;
  std::int64_t n = 0;
  for (const std::int32_t token : proposal.drafts) {
    const bool known = token >= 0 && token < model_->config().vocab;
    if (n == proposal.most || !known) break;
    if (std::binary_search(r.stops.begin(), r.stops.end(), token)) break;
    ++n;
  }
  if (r.constraint) n = allowed_drafts(r, std::span(proposal.drafts).first(at(n)));
  const std::int64_t known = r.known();
  r.drafts = draft_rows(known, n, limits(), available_);
  if (r.drafts == 0) return;
  pages_.extend_further(known + r.drafts, r.pages);
  r.tokens.insert(r.tokens.end(), proposal.drafts.begin(), proposal.drafts.begin() + r.drafts);
  rows += r.drafts;
}

// Fills the row of r.allowed after `drafts` drafts from a constraint in that state. Returns false
// if the answer ends there, as nothing may follow. Errors: the constraint's; nothing may follow,
// but the answer may not end.
Result<bool> Engine::find_allowed(Active& r, TokenConstraint& constraint, std::int64_t drafts) {
  const std::int64_t words = allowed_words();
  r.allowed.resize(at(words * (drafts + 1)));
  const std::span<std::uint32_t> bits = r.allowed_after(drafts, words);
  const auto may_end = constraint.allowed(bits);
  if (!may_end) return may_end.error();
  const auto bit_of = [](std::int32_t token) { return std::uint32_t{1} << (token % 32); };
  for (const std::int32_t t : r.stops) bits[at(t / 32)] &= ~bit_of(t);
  const bool goes_on = std::any_of(bits.begin(), bits.end(), [](auto word) { return word != 0; });
  if (!goes_on && !*may_end) {
    return Error{ErrorCode::exhausted, "the answer's constraint",
                 "a token of the vocabulary that may follow", "none",
                 "a constraint that needs no such text"};
  }
  if (*may_end) {
    for (const std::int32_t t : r.stops) bits[at(t / 32)] |= bit_of(t);
  }
  return goes_on;
}

// How many drafts the constraint allows, up to one after which the answer would end.
std::int64_t Engine::allowed_drafts(Active& r, std::span<const std::int32_t> drafts) {
  const std::unique_ptr<TokenConstraint> ahead = r.constraint->clone();
  std::int64_t n = 0;
  for (const std::int32_t token : drafts) {
    if (!ahead->accept(token)) break;
    const auto goes_on = find_allowed(r, *ahead, n + 1);
    if (!goes_on || !*goes_on) break;
    ++n;
  }
  return n;
}

// Waiting is safe: its sibling is older and makes progress (E3). Requests after it wait, too (E2),
// for a prefill that would have taken their rows.
bool Engine::waits_for_sibling(const Active& r) const {
  if (!options_.prefix_cache || r.sibling_of.value == 0) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const ActivePtr& s) {
    return s->id == r.sibling_of && s->answered() == 0;
  });
}

void Engine::admit(std::int64_t prefill_rows, StepReport& report) {
  while (!waiting_.empty() && prefill_rows > 0 &&
         std::ssize(running_) < options_.max_running_requests) {
    Active& r = *waiting_.front();
    if (waits_for_sibling(r)) return;
    // The last known token is always computed, for its logits. So are rows that score the prompt.
    const std::int64_t match = r.scores() ? r.next_scored : r.known() - 1;
    r.computed = match > 0 ? pages_.match(r.tokens, match, r.pages) : 0;
    count_available();
    if (!admits(scheduled_, r.scheduled(), limits(), available_)) {
      give_up_pages(r);
      return;
    }
    const std::int64_t rows = cap_scored_rows(r, first_rows(r.scheduled(), limits(), prefill_rows));
    if (rows == 0) {
      give_up_pages(r);
      return;
    }
    ++report.admitted;
    report.cached_tokens += r.computed;
    if (!r.admitted_before) {
      r.cached = r.computed;
      report.started.push_back({r.id, r.computed});
    }
    r.admitted_before = true;
    r.read = r.settled = r.computed;
    pages_.extend(r.computed, r.computed + rows, r.pages);
    prefill_rows -= rows;
    rows_.push_back(rows);
    scheduled_.push_back(r.scheduled());
    scheduled_.back().covered += rows;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Kinds of page in a request's lists: keys, compressed entries, states.
std::size_t Engine::state_kinds() const {
  return pages_.rules().size() - cache_->groups() - cache_->plan().entry_groups();
}

// Gives the step's next item the pages of its request, which has `cached` tokens before its rows.
void Engine::give_pages(Active& r, std::int64_t cached, Flight& step, BatchItem& item) {
  const std::size_t groups = cache_->groups();
  const std::size_t entries = cache_->plan().entry_groups();
  const std::size_t first_state = groups + entries, states = state_kinds();
  item.pages = std::span(r.pages.lists).first(groups);
  item.entries = std::span(r.pages.lists).subspan(groups, entries);
  item.states = std::span(r.pages.lists).subspan(first_state);
  const std::span<PageId> before =
      std::span(step.states).subspan(step.items.size() * states, states);
  for (std::size_t k = 0; k < states; ++k) {
    before[k] = &step == &ahead_ ? pages_.last_before_ahead(first_state + k, cached, r.pages)
                                 : pages_.last_before(first_state + k, cached, r.pages);
  }
  item.states_before = before;
}

// Decode rows come first, each followed by its drafts, then prefill chunks, all by age. If one
// request has drafts, all decoding requests run as phase verify, in one segment.
void Engine::build_batch(StepReport& report) {
  step_.batch.clear();
  step_.items.clear();
  step_.states.resize(running_.size() * state_kinds());
  std::int64_t drafts = 0;
  for (const ActivePtr& r : running_) drafts += r->drafts;
  const Phase decode = drafts > 0 ? Phase::verify : Phase::decode;
  step_.samples.clear();
  step_.samples.reserve(running_.size() + static_cast<std::size_t>(drafts));  // items point into it
  for (bool decodes : {true, false}) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Active& r = *running_[i];
      if (rows_[i] == 0 || scheduled_[i].decodes() != decodes) continue;
      BatchItem item;
      item.phase = decodes ? decode : Phase::extend;
      give_pages(r, r.computed, step_, item);
      item.cached = static_cast<std::int32_t>(r.computed);
      item.tokens = std::span(r.tokens).subspan(static_cast<std::size_t>(r.computed),
                                                static_cast<std::size_t>(rows_[i]));
      if (r.computed + rows_[i] == std::ssize(r.tokens)) {
        item.logits = 1 + r.drafts;
        const std::size_t first = step_.samples.size();
        for (std::int64_t k = 0; k <= r.drafts; ++k) step_.samples.push_back(sampling_of(r, k));
        item.samples = std::span(step_.samples).subspan(first);
      }
      if (r.scores()) {
        const std::int64_t first = std::max(r.computed, r.next_scored);
        const std::int64_t end = std::min(r.computed + rows_[i], r.prompt - 1);
        if (end > first) {
          item.first_scored = first - r.computed;
          item.scored = std::span(r.tokens).subspan(static_cast<std::size_t>(first + 1),
                                                    static_cast<std::size_t>(end - first));
          item.scored_top = *r.sampling.logprobs;
          item.scored_ids = r.sampling.logprob_ids;
        }
      }
      step_.batch.push_back(&r);
      step_.items.push_back(item);
      (decodes ? report.decode_rows : report.prefill_rows) += rows_[i] - r.drafts;
      report.drafted += r.drafts;
    }
  }
}

// Sampling arguments after `drafts` of its drafts, as if they were tokens, and after `unknown`
// tokens that a step in flight draws.
SampleArgs Engine::sampling_of(Active& r, std::int64_t drafts, std::int32_t unknown) const {
  const auto tokens = std::span(r.tokens).first(static_cast<std::size_t>(r.known() + drafts));
  const auto prompt = static_cast<std::size_t>(r.prompt);
  SampleArgs args;
  args.params = &r.sampling;
  args.prompt = tokens.first(prompt);
  args.answer = tokens.subspan(prompt);
  args.unknown = unknown;
  if (r.answered() + drafts + unknown < r.sampling.min_tokens) args.ruled_out = r.stops;
  args.seed = r.seed;
  if (r.constraint) args.allowed = r.allowed_after(drafts, allowed_words());
  return args;
}

void Engine::take_results(StepReport& report) {
  kept_.reset();
  computed_.clear();
  computed_of_.clear();
  report.tokens.reserve(step_.samples.size());
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Active& r = *step_.batch[i];
    if (r.ended) continue;  // cancelled meanwhile
    const std::int64_t drafts = r.drafts;
    const std::int64_t rows = std::ssize(step_.items[i].tokens) - drafts;
    if (const NonFiniteItem* bad = non_finite_row(i, 0, rows)) {
      end(r, FinishReason::error, not_finite(r, bad->layer), report.finished);
      continue;
    }
    const std::int64_t before = std::exchange(r.computed, r.computed + rows);
    if (!step_.items[i].scored.empty()) take_scored(r, i);
    if (step_.items[i].logits > 0) take_tokens(r, i, report);
    if (!r.ended && r.constraint && step_.items[i].logits > 0) follow_constraint(r, report);
    if (!r.ended || r.in_flight > 0) pages_.confirm(r.pages);
    if (r.ended) continue;
    if (drafts > 0) pages_.undo(r.computed, r.pages);  // those of rejected drafts
    if (drafter_reads()) add_computed(r, i, before);
  }
  for (ActivePtr& r : running_) {
    if (r->ended && r->in_flight > 0) leaving_.push_back(std::move(r));
  }
  std::erase_if(running_, [](const ActivePtr& r) { return r == nullptr || r->ended; });
  if (!computed_.empty()) hand_to_drafter();
  for (const ActivePtr& r : running_) settle(*r);
  if (std::exchange(asked_, false)) batch_drafts_.record(report.decode_rows, report.accepted);
}

// Releases the pages before the window of all later rows, a draft layer's included.
void Engine::settle(Active& r) {
  const bool follows = drafter_reads() && r.read + std::ssize(r.unread) == r.computed;
  const std::int64_t to = follows ? r.read : r.computed;
  pages_.settle(r.settled, to, r.pages);
  r.settled = to;
}

// Whether reading rows from `from` on after rows up to `to` keeps no additional page.
bool Engine::keeps_pages(std::int64_t from, std::int64_t to) const {
  return std::ranges::all_of(pages_.rules(), [&](const PageRule& rule) {
    return rule.first_kept(from, pages_.block_tokens()) ==
           rule.first_kept(to, pages_.block_tokens());
  });
}

// Passes an item's rows to a drafter that reads them. While too many requests run for drafts, it is
// spared the rows of answers, which a step in flight overwrites; a request with missed rows gets no
// drafts from then on. Rows of an answer that wants no draft are kept until it does, or until there
// are many.
void Engine::add_computed(Active& r, std::size_t item, std::int64_t before) {
  const bool prefill = step_.items[item].phase == Phase::extend;
  const bool drafts = drafts_at(std::ssize(running_)) > 0;
  const std::int64_t unread = std::ssize(r.unread);
  const bool lost = r.read + unread != before || (unread > 0 && !hidden_rows()->has(r.first_kept));
  if (lost || in_flight() || (!prefill && !drafts)) return r.unread.clear();
  const std::int64_t n = r.computed - before;
  const std::int64_t most = r.scheduled().decodes() ? draft_bound(r) : 0;
  const bool waits = !prefill && most < 1 && keeps_pages(r.read, r.computed);
  if (waits && keep_rows(r, item, n)) return;
  ComputedRows& rows = computed_.emplace_back();
  rows.id = r.id;
  rows.tokens = r.tokens;
  rows.first = r.read;
  rows.hidden = r.unread;
  for (std::int64_t k = 0; k < n; ++k) rows.hidden.push_back(runner_.hidden(item, k));
  rows.pages = std::span(r.pages.lists).first(cache_->groups());
  rows.prefill = prefill;
  if (most > 0) {
    rows.most = most;
    rows.sampling = sampling_of(r, 0);
  }
  computed_of_.push_back(&r);
}

// Keeps an item's first rows for later, with all decode rows, which are the batch's first. Returns
// false if too many rows are kept, or for too long.
bool Engine::keep_rows(Active& r, std::size_t item, std::int64_t rows) {
  HiddenRows& hidden = *hidden_rows();
  const std::int64_t room =
      std::min(kUnreadRows, cache_->plan().max_rows() - 1 - options_.draft_tokens);
  const std::int64_t unread = std::ssize(r.unread);
  if (unread + rows > room) return false;
  if (unread > 0 && hidden.keeps() - r.first_kept >= kUnreadRows) return false;
  if (!kept_) {
    std::int64_t decoding = 0;
    for (const BatchItem& i : step_.items) {
      if (i.phase != Phase::extend) decoding += std::ssize(i.tokens);
    }
    if (decoding > hidden.sizes().kept) return false;
    kept_ = hidden.keep(ops_, decoding);
  }
  if (unread == 0) r.first_kept = hidden.keeps() - 1;
  for (std::int64_t k = 0; k < rows; ++k) {
    r.unread.push_back(*kept_ + runner_.hidden(item, k) - hidden.step_place(0));
  }
  return true;
}

// A failure here costs drafts alone. Prompts are shared from here on, as their pages are complete.
void Engine::hand_to_drafter() {
  const bool ok = options_.drafter->read(computed_).ok();
  for (std::size_t i = 0; i < computed_.size(); ++i) {
    Active& r = *computed_of_[i];
    if (ok) r.read = r.computed;
    r.unread.clear();
    if (computed_[i].prefill && r.answered() > 0) publish(r);
  }
}

// The item's first row in [first, end) with NaN or Inf, or null.
const NonFiniteItem* Engine::non_finite_row(std::size_t item, std::int64_t first,
                                            std::int64_t end) const {
  for (const NonFiniteItem& bad : runner_.non_finite()) {
    if (bad.item == item && bad.row >= first && bad.row < end) return &bad;
  }
  return nullptr;
}

// Updates what may follow after the step's tokens; if nothing, the answer is complete.
void Engine::follow_constraint(Active& r, StepReport& report) {
  const auto goes_on = find_allowed(r, *r.constraint, 0);
  if (!goes_on) {
    end(r, FinishReason::error, goes_on.error(), report.finished);
  } else if (!*goes_on) {
    end(r, FinishReason::complete, std::nullopt, report.finished);
  }
}

// A non-finite row shows in the answer's first token, too: attention propagates it.
void Engine::take_scored(Active& r, std::size_t item) {
  const std::span<const std::optional<SampledToken>> scored = runner_.scored(item);
  for (std::size_t k = 0; k < scored.size(); ++k) {
    r.prompt_logprobs.push_back(
        scored[k].value_or(SampledToken{step_.items[item].scored[k], {}, {}, {}}));
  }
  r.next_scored += std::ssize(scored);
}

// The draw after each draft counts while all drafts before it equal their draws. Rejected drafts'
// keys lie behind the computed tokens, where the next rows overwrite them before anything reads.
void Engine::take_tokens(Active& r, std::size_t item, StepReport& report) {
  const std::int64_t drafts = r.drafts;
  std::int64_t accepted = 0;
  while (take_token(r, item, accepted, report)) {
    const std::int64_t row = std::ssize(step_.items[item].tokens) - drafts + accepted;
    ++accepted;
    if (const NonFiniteItem* bad = non_finite_row(item, row, row + 1)) {
      end(r, FinishReason::error, not_finite(r, bad->layer), report.finished);
      break;
    }
    ++r.computed;
  }
  r.drop_drafts();
  if (drafts == 0) return;
  // A check's weight in the average that later requests start with; the first weigh more.
  const double weight = std::max(0.1, 1.0 / static_cast<double>(5 + sums_.drafts.checks));
  good_drafts_ += weight * (r.draft_length.record(drafts, accepted) - good_drafts_);
  sums_.drafts.record(drafts, accepted);
  report.accepted += accepted;
}

// Adds the token drawn from the k-th row of logits, which may be the answer's last. Returns true if
// it equals the next draft, whose row counts then, and the answer goes on.
bool Engine::take_token(Active& r, std::size_t item, std::int64_t k, StepReport& report) {
  if (options_.on_logits) {
    const auto logits = runner_.logits(item, k, ops_);
    if (!logits) {
      end(r, FinishReason::error, logits.error(), report.finished);
      return false;
    }
    options_.on_logits(r.id, *logits);
  }
  std::optional<SampledToken>& sampled = runner_.sampled(item, k);
  if (!sampled) {
    end(r, FinishReason::error, not_finite(r, std::nullopt), report.finished);
    return false;
  }
  const bool prefill = step_.items[item].phase == Phase::extend;
  if (prefill && !drafter_reads()) pages_.publish(r.tokens, r.pages);
  if (!r.forced.empty()) sampled->token = r.forced[static_cast<std::size_t>(r.answered())];
  const std::int32_t token = sampled->token;
  report.tokens.push_back(
      {r.id, r.answered(), std::move(*sampled), std::exchange(r.prompt_logprobs, {})});
  const bool right = r.drafts > 0 && r.tokens[static_cast<std::size_t>(r.known())] == token;
  if (right) {
    --r.drafts;
  } else {
    r.drop_drafts();
    r.tokens.push_back(token);
  }
  const bool stop = std::binary_search(r.stops.begin(), r.stops.end(), token);
  if (!stop && r.constraint) LATHE_CHECK(r.constraint->accept(token), "token not accepted");
  if (!stop && r.answered() < r.limit) return right;
  FinishReason reason = stop ? FinishReason::stop : FinishReason::length;
  if (!stop && r.constraint) {
    const auto goes_on = find_allowed(r, *r.constraint, 0);
    if (goes_on && !*goes_on) reason = FinishReason::complete;
  }
  end(r, reason, std::nullopt, report.finished);
  return false;
}

Error Engine::not_finite(const Active& r, std::optional<std::int32_t> layer) const {
  std::string place = fmt::format("NaN or Inf in step {}", sums_.steps);
  if (layer && *layer < 0) {
    place += ", in the embedding";
  } else if (layer && *layer >= model_->config().layers) {
    place += ", in the logits";
  } else if (layer) {
    place += fmt::format(", after layer {}", *layer);
  }
  return {ErrorCode::out_of_range, fmt::format("logits of request {}", r.id.value),
          "finite numbers", std::move(place), layer ? "" : "--debug-nan names the layer"};
}

}  // namespace lathe
