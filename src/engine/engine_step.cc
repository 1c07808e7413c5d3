#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace lathe {

Result<StepReport> Engine::step() {
  if (options_.before_step) {
    if (auto ok = options_.before_step(); !ok) return ok.error();
  }
  if (!in_flight()) {
    if (auto ok = launch(); !ok) return ok.error();
  }
  launch_ahead();
  return collect();
}

Result<void> Engine::launch() {
  LATHE_CHECK(!in_flight(), "collect() comes before the next launch()");
  step_.report = {};
  if (running_.empty() && waiting_ == 0) return {};
  StepReport report;
  schedule(report);
  build_batch(report);
  LATHE_CHECK(!step_.items.empty(), "no request has a row (E3)");
  sums_.preemptions += report.preemptions;
  sums_.cached_tokens += report.cached_tokens;
  if (auto ok = runner_.launch(step_.items, options_.debug_nan); !ok) {
    undo_step();
    return ok;
  }
  for (Sequence* r : step_.batch) ++r->in_flight;
  step_.report = std::move(report);
  return {};
}

Result<StepReport> Engine::collect() {
  const bool ran = in_flight();
  const Result<void> ok = ran ? runner_.collect() : Result<void>();
  prefetch_requests();
  if (ran) land(step_);
  if (!ok && in_flight()) {  // the next step has read what the failed one did not write
    (void)runner_.collect();
    land(ahead_);
  }
  for (const SequencePtr& r : leaving_) {
    if (r->in_flight > 0) continue;
    pages_.undo(r->computed, r->pages);
    keep_and_release(*r, *r->ended);
  }
  if (!ok) {
    leaving_.clear();
    undo_step();
    return ok.error();
  }
  StepReport report = std::exchange(step_.report, {});
  if (ran) ++sums_.steps;
  report.step = sums_.steps;
  sums_.prefill_rows += report.prefill_rows;
  sums_.decode_rows += report.decode_rows;
  report.finished = std::exchange(unreported_, {});
  if (ran) take_results(report);
  std::erase_if(leaving_, [](const SequencePtr& r) { return r->in_flight == 0; });
  if (in_flight()) std::swap(step_, ahead_);
  return report;
}

void Engine::land(const Flight& flight) {
  for (Sequence* r : flight.batch) --r->in_flight;
}

// Undoes the allocations of failed steps. Tokens that such a step was to copy may be missing. Rows
// kept for a drafter may have been lost, so it gets none of them.
void Engine::undo_step() {
  for (const SequencePtr& r : running_) {
    r->drafting.unread.clear();
    r->drop_drafts();
    // In the order of the lists: the rows' pages are after the page of copied tokens.
    pages_.undo(r->computed, r->pages);
    r->computed -= pages_.drop_copies(r->pages);
  }
}

// While the device computes, other programs fill this processor's caches, and sequences are far
// apart in memory. Without prefetching, the host would wait for one cache miss after another.
void Engine::prefetch_requests() const {
  for (const SequencePtr& r : running_) r->prefetch();
  for (const SequencePtr& r : running_) r->prefetch_lists();
}

void Engine::Sequence::prefetch() const {
  const char* const begin = reinterpret_cast<const char*>(this);
  for (std::size_t at = 0; at < sizeof(Sequence); at += 64) __builtin_prefetch(begin + at);
}

void Engine::Sequence::prefetch_lists() const {
  __builtin_prefetch(tokens.data() + tokens.size());
  for (const std::vector<PageId>& list : pages.lists) {
    __builtin_prefetch(&list);
    __builtin_prefetch(list.data() + list.size());
  }
}

}  // namespace lathe
