#include "engine/engine.h"

namespace lathe {

void Engine::give_up_pages(Sequence& r) {
  pages_.release(r.pages);
  r.computed = r.trimmed = 0;
  r.drafting.restart(0);
}

// Caches the full pages with all their keys, a draft layer's included.
void Engine::publish(Sequence& r) {
  pages_.publish(r.first(drafting_.complete(r.drafting, r.computed)), r.pages);
}

// Caches the prompts that got their first token in this step, for a drafter that reads rows: only
// now are its keys complete.
void Engine::publish_prompts() {
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Sequence& r = *step_.batch[i];
    if (step_.items[i].phase == Phase::extend && !r.ended && r.answered() > 0) publish(r);
  }
}

// Caches states and window pages at the boundary where a request parts from a cached prompt. The
// same tokens have led to finite logits before (E9).
void Engine::publish_partings() {
  for (const SequencePtr& r : running_) {
    if (r->parting == 0 || r->computed < r->parting) continue;
    publish(*r);
    r->parting = 0;
  }
}

// Caches an ended request's full pages, unless their keys led to no token or to NaN (E9).
void Engine::keep_and_release(Sequence& r, FinishReason reason) {
  if (reason != FinishReason::error && r.answered() > 0) publish(r);
  give_up_pages(r);
}

// Releases the pages that no later row has in its window, a draft layer's rows included.
void Engine::trim(Sequence& r) {
  const std::int64_t to = drafting_.next_row(r.drafting, r.computed);
  pages_.trim(r.trimmed, to, r.pages);
  r.trimmed = to;
}

}  // namespace lathe
