#include "engine/runner/rank_watch.h"

#include <algorithm>
#include <utility>

namespace lathe {

RankWatch::Verdict RankWatch::look(Time now, std::uint64_t step,
                                   std::span<const std::uint64_t> finished, bool aborted) {
  if (step != step_) {
    step_ = step;
    aborted_.reset();
    told_ = false;
    since_ = now;
  }
  if (step == 0) return Verdict::fine;
  if (!std::ranges::equal(finished, finished_)) {
    finished_.assign(finished.begin(), finished.end());
    since_ = now;
  }
  if (aborted) {
    if (!aborted_) aborted_ = now;
    const bool late = now - *aborted_ > limits_.leave;
    return late && !std::exchange(told_, true) ? Verdict::stuck : Verdict::fine;
  }
  const Time limit = step <= limits_.first_steps ? limits_.first : limits_.exchange;
  return now - since_ > limit ? Verdict::stopped : Verdict::fine;
}

}  // namespace lathe
