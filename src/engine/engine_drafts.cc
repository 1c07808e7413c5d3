#include <algorithm>

#include "engine/engine.h"

namespace lathe {

// Adds drafts to decoding requests, oldest first. They use only pages that are free after
// everything else of the step, so they preempt nobody, delay no admission and evict nothing (E5).
void Engine::add_drafts() {
  draftable_.clear();
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& r = *running_[i];
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

// Adds a request's drafts up to the first one that is outside the vocabulary, that would end the
// answer (a row for it would be wasted), that its constraint refuses, or that finds no page.
void Engine::take_proposal(Sequence& r, const DraftRequest& proposal, std::int64_t& rows) {
  if (proposal.drafts.empty()) return;
  std::int64_t n = 0;
  for (const std::int32_t token : proposal.drafts) {
    const bool known = token >= 0 && token < model_->config().vocab;
    if (n == proposal.most || !known) break;
    if (std::binary_search(r.stops.begin(), r.stops.end(), token)) break;
    ++n;
  }
  if (r.constraint)
    n = allowed_drafts(r, std::span(proposal.drafts).first(static_cast<std::size_t>(n)));
  const std::int64_t known = r.known();
  r.drafts = draft_rows(known, n, limits(), available_);
  if (r.drafts == 0) return;
  pages_.extend_further(known + r.drafts, r.pages);
  r.tokens.insert(r.tokens.end(), proposal.drafts.begin(), proposal.drafts.begin() + r.drafts);
  rows += r.drafts;
}

DraftView Engine::draft_view(Sequence& r) const {
  DraftView view{r.id, &r.drafting, r.first(r.known()), r.computed};
  view.left = r.forced.empty() ? r.limit - r.answered() : 0;
  view.decodes = r.scheduled().decodes();
  view.cache_salt = r.pages.cache_salt;
  return view;
}

// Passes an item's rows on, if the drafter reads them.
void Engine::add_rows(Sequence& r, std::size_t item, std::int64_t before,
                      const StepReport& report) {
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

}  // namespace lathe
