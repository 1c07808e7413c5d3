#include <algorithm>

#include "engine/engine.h"

namespace lathe {

// The number of kinds of page that are states. In a request's lists they come after the kinds of
// keys and of compressed entries.
std::size_t Engine::state_kinds() const {
  return pages_.rules().size() - cache_->groups() - cache_->plan().entry_groups();
}

// Sets the page lists of the step's next item; its request has `cached` tokens before the item's
// rows.
void Engine::give_pages(Sequence& r, std::int64_t cached, Flight& step, BatchItem& item) {
  const std::size_t groups = cache_->groups();
  const std::size_t entries = cache_->plan().entry_groups();
  const std::size_t first_state = groups + entries, states = state_kinds();
  item.pages = std::span(r.pages.lists).first(groups);
  item.copied = r.pages.copied;
  item.copied_from = r.pages.copied_from;
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

// Asks for the log-probabilities of the prompt's tokens that follow the item's rows.
void Engine::add_scored_rows(const Sequence& r, std::int64_t rows, BatchItem& item) {
  const std::int64_t first = std::max(r.computed, r.next_scored);
  const std::int64_t end = std::min(r.computed + rows, r.prompt - 1);
  if (end <= first) return;
  item.first_scored = first - r.computed;
  item.scored = std::span(r.tokens).subspan(static_cast<std::size_t>(first + 1),
                                            static_cast<std::size_t>(end - first));
  item.scored_top = *r.sampling.logprobs;
  item.scored_ids = r.sampling.logprob_ids;
}

// Decode rows come first, each followed by its drafts, then prefill chunks; both by age. If any
// request has drafts, all decoding requests run as phase verify, in one segment.
void Engine::build_batch(StepReport& report) {
  step_.batch.clear();
  step_.items.clear();
  step_.states.resize(running_.size() * state_kinds());
  std::int64_t drafts = 0;
  for (const SequencePtr& r : running_) drafts += r->drafts;
  const Phase decode = drafts > 0 ? Phase::verify : Phase::decode;
  step_.samples.clear();
  step_.samples.reserve(running_.size() + static_cast<std::size_t>(drafts));  // items point into it
  for (bool decodes : {true, false}) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Sequence& r = *running_[i];
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
      if (r.scores()) add_scored_rows(r, rows_[i], item);
      step_.batch.push_back(&r);
      step_.items.push_back(item);
      (decodes ? report.decode_rows : report.prefill_rows) += rows_[i] - r.drafts;
      report.drafted += r.drafts;
    }
  }
}

// How to sample the token after the first `drafts` drafts, as if those were tokens, and after
// `unknown` tokens that a step in flight is still sampling.
SampleArgs Engine::sampling_of(Sequence& r, std::int64_t drafts, std::int32_t unknown) const {
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

}  // namespace lathe
