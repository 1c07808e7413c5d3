#include <algorithm>

#include "engine/engine.h"

namespace lathe {

// Whether nothing about the next step depends on the tokens that the step in flight samples: it has
// a decode row of each running request and nothing else, nobody can be admitted, and no row's
// sampling reads earlier tokens.
bool Engine::may_follow() {
  const bool plain =
      options_.overlap && ops_.backend->overlaps() && !options_.on_logits && !options_.debug_nan;
  if (!plain || !in_flight() || runner_.in_flight_ahead()) return false;
  if (waiting_ > 0 && std::ssize(running_) < options_.max_running_requests) return false;
  if (waits_unfairly()) return false;
  std::size_t decoding = 0;
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Sequence& r = *step_.batch[i];
    if (r.ended) continue;
    ++decoding;
    if (step_.items[i].phase != Phase::decode || !r.forced.empty() || r.constraint) return false;
    if (has_penalties(r.sampling)) return false;
    if (drafting_.may_draft(draft_view(r), std::ssize(running_))) return false;
    if (waiting_ > 0 && ends_next(r)) return false;  // a waiting request may get its place
  }
  return decoding == running_.size();
}

void Engine::launch_ahead() {
  if (!may_follow()) return;
  count_available();
  const std::span<const PageRule> rules = pages_.rules();
  std::int64_t rows = 0;
  for (const SequencePtr& r : running_) {
    if (ends_next(*r)) continue;
    ++rows;
    for (std::size_t k = 0; k < rules.size(); ++k) {
      available_[k] -= rules[k].new_pages(r->known(), r->known() + 1);
    }
  }
  const bool fits = std::ranges::all_of(available_, [](std::int64_t n) { return n >= 0; });
  if (rows == 0 || !fits) return;

  drafting_.begin_step_ahead();
  ahead_.clear();
  ahead_.samples.reserve(static_cast<std::size_t>(rows));  // items point into both
  ahead_.tokens.reserve(static_cast<std::size_t>(rows));
  ahead_.states.resize(static_cast<std::size_t>(rows) * state_kinds());
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Sequence& r = *step_.batch[i];
    if (r.ended || ends_next(r)) continue;
    drafting_.skip(r.drafting);
    pages_.extend_ahead(r.known(), r.known() + 1, r.pages);
    BatchItem item;
    item.phase = Phase::decode;
    give_pages(r, r.known(), ahead_, item);
    item.cached = static_cast<std::int32_t>(r.known());
    ahead_.tokens.push_back(runner_.drawn(i, 0));
    item.tokens = std::span(ahead_.tokens).last(1);
    item.logits = 1;
    ahead_.samples.push_back(sampling_of(r, 0, 1));
    item.samples = std::span(ahead_.samples).last(1);
    ahead_.batch.push_back(&r);
    ahead_.items.push_back(item);
    ++r.in_flight;
  }
  ahead_.report.decode_rows = rows;
  runner_.launch_ahead(ahead_.items);
}

}  // namespace lathe
