// What a step holds and what becomes of its results: schedule, batch, tokens.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

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
  r.computed = r.settled = 0;
  r.drafting.restart(0);
}

// Caches full pages whose keys are complete, a draft layer's included.
void Engine::publish(Active& r) {
  const std::int64_t complete = drafting_.complete(r.drafting, r.computed);
  pages_.publish(std::span(r.tokens).first(at(complete)), r.pages);
}

// Keeps its tokens; its full pages go to the prefix cache, where it may find them again (E7).
void Engine::preempt_youngest(StepReport& report) {
  ActivePtr r = std::move(running_.back());
  running_.pop_back();
  publish(*r);
  give_up_pages(*r);
  drafting_.forget(r->id);
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
  if (drafting_.begin_step(std::ssize(running_))) add_drafts();
}

// Adds drafts of decoding requests, oldest first, in pages that are left in this step and that the
// prefix cache does not hold: drafts preempt nobody, delay no admission and evict nothing.
void Engine::add_drafts() {
  draftable_.clear();
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Active& r = *running_[i];
    if (rows_[i] == 0 || !r.forced.empty()) continue;
    DraftView& view = draftable_.emplace_back(draft_view(r));
    if (view.decodes) view.sampling = sampling_of(r, 0);
  }
  const auto proposals = drafting_.propose(draftable_, std::ssize(running_));
  if (proposals.empty()) return;
  for (std::size_t k = 0; k < available_.size(); ++k) available_[k] = pages_.free(k);
  std::size_t i = 0;
  for (const DraftRequest& proposal : proposals) {
    while (running_[i]->id != proposal.id) ++i;
    take_proposal(*running_[i], proposal, rows_[i]);
  }
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
    r.settled = r.computed;
    r.drafting.restart(r.computed);
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
    if (drafting_.reads()) add_rows(r, i, before, report);
  }
  drafting_.end_step(report.decode_rows, report.accepted);
  if (drafting_.reads()) publish_prompts();
  for (ActivePtr& r : running_) {
    if (r->ended && r->in_flight > 0) leaving_.push_back(std::move(r));
  }
  std::erase_if(running_, [](const ActivePtr& r) { return r == nullptr || r->ended; });
  for (const ActivePtr& r : running_) settle(*r);
}

DraftView Engine::draft_view(Active& r) const {
  DraftView view{r.id, &r.drafting, std::span(r.tokens).first(at(r.known())), r.computed};
  view.left = r.forced.empty() ? r.limit - r.answered() : 0;
  view.decodes = r.scheduled().decodes();
  return view;
}

// Passes an item's rows to a drafter that reads them.
void Engine::add_rows(Active& r, std::size_t item, std::int64_t before, const StepReport& report) {
  DraftView view = draft_view(r);
  if (view.decodes) view.sampling = sampling_of(r, 0);
  const StepRows rows{
      .item = item,
      .first = before,
      .prefill = step_.items[item].phase == Phase::extend,
      .decode_rows = report.decode_rows + report.drafted,
      .pages = std::span(r.pages.lists).first(cache_->groups()),
  };
  drafting_.add(view, rows, std::ssize(running_), runner_);
}

// Prompts of the step, after a drafter that reads rows has completed their pages.
void Engine::publish_prompts() {
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Active& r = *step_.batch[i];
    if (step_.items[i].phase == Phase::extend && !r.ended && r.answered() > 0) publish(r);
  }
}

// Releases the pages before the window of all later rows, a draft layer's included.
void Engine::settle(Active& r) {
  const std::int64_t to = drafting_.next_row(r.drafting, r.computed);
  pages_.settle(r.settled, to, r.pages);
  r.settled = to;
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
  drafting_.took(r.drafting, drafts, accepted);
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
  if (prefill && !drafting_.reads()) publish(r);
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
