// Steps in flight: launch, the step behind one in flight, collect, and what failures undo.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace lathe {

Result<void> Engine::launch() {
  LATHE_CHECK(!in_flight(), "collect() comes before the next launch()");
  step_.report = {};
  if (running_.empty() && waiting_.empty()) return {};
  StepReport report;
  schedule(report);
  build_batch(report);
  LATHE_CHECK(!step_.items.empty(), "no request has a row (E3)");
  sums_.preemptions += report.preemptions;
  sums_.cached_tokens += report.cached_tokens;
  if (auto ok = runner_.launch(step_.items, ops_, options_.debug_nan); !ok) {
    undo_step();
    return ok;
  }
  for (Active* r : step_.batch) ++r->in_flight;
  step_.report = std::move(report);
  return {};
}

// Whether the step behind the one in flight has a decode row of each of its requests, whatever that
// draws, and nothing else: nobody can be admitted, and no draw needs more than the number of tokens
// before it.
bool Engine::may_follow() const {
  const bool plain =
      options_.overlap && ops_.backend->overlaps() && !options_.on_logits && !options_.debug_nan;
  if (!plain || !in_flight() || runner_.in_flight_ahead()) return false;
  if (!waiting_.empty() && std::ssize(running_) < options_.max_running_requests) return false;
  std::size_t decoding = 0;
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Active& r = *step_.batch[i];
    if (r.ended) continue;
    ++decoding;
    if (step_.items[i].phase != Phase::decode || !r.forced.empty() || r.constraint) return false;
    if (has_penalties(r.sampling)) return false;
    if (drafting_.may_draft(draft_view(r), std::ssize(running_))) return false;
    if (!waiting_.empty() && ends_next(r)) return false;  // whose place may be taken
  }
  return decoding == running_.size();
}

void Engine::Active::prefetch() const {
  const char* const begin = reinterpret_cast<const char*>(this);
  for (std::size_t at = 0; at < sizeof(Active); at += 64) __builtin_prefetch(begin + at);
}

void Engine::Active::prefetch_lists() const {
  __builtin_prefetch(tokens.data() + tokens.size());
  for (const std::vector<PageId>& list : pages.lists) {
    __builtin_prefetch(&list);
    __builtin_prefetch(list.data() + list.size());
  }
}

// A step of the device lasts long enough for others to take this processor's caches, and requests
// lie far apart: fetched one after another when they are needed, they are what the host waits for.
void Engine::prefetch_requests() const {
  for (const ActivePtr& r : running_) r->prefetch();
  for (const ActivePtr& r : running_) r->prefetch_lists();
}

void Engine::launch_ahead() {
  if (!may_follow()) return;
  count_available();
  const std::span<const PageRule> rules = pages_.rules();
  std::int64_t rows = 0;
  for (const ActivePtr& r : running_) {
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
    Active& r = *step_.batch[i];
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
  runner_.launch_ahead(ahead_.items, ops_);
}

Result<StepReport> Engine::collect() {
  const bool ran = in_flight();
  const Result<void> ok = ran ? runner_.collect() : Result<void>();
  prefetch_requests();
  if (ran) land(step_);
  if (!ok && in_flight()) {  // the step behind it has read what it did not write
    (void)runner_.collect();
    land(ahead_);
  }
  for (const ActivePtr& r : leaving_) {
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
  std::erase_if(leaving_, [](const ActivePtr& r) { return r->in_flight == 0; });
  if (in_flight()) std::swap(step_, ahead_);
  return report;
}

Result<StepReport> Engine::step() {
  if (!in_flight()) {
    if (auto ok = launch(); !ok) return ok.error();
  }
  launch_ahead();
  return collect();
}

void Engine::land(const Flight& flight) {
  for (Active* r : flight.batch) --r->in_flight;
}

// Undoes the allocations of failed steps. Rows kept for a drafter may be lost with them.
void Engine::undo_step() {
  for (const ActivePtr& r : running_) {
    r->drafting.unread.clear();
    r->drop_drafts();
    pages_.undo(r->computed, r->pages);
  }
}

}  // namespace lathe
