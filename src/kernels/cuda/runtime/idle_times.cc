#include "kernels/cuda/runtime/idle_times.h"

namespace lathe::cuda {

Result<void> IdleTimes::start() {
  while (gaps_.size() < 2) {
    auto end = Mark::make_timed();
    if (!end) return end.error();
    auto begin = Mark::make_timed();
    if (!begin) return begin.error();
    gaps_.push_back({std::move(*end), std::move(*begin)});
  }
  return {};
}

Result<void> IdleTimes::end_step(const Stream& stream) {
  if (gaps_.empty()) return {};
  last_ = 1 - last_;
  gaps_[last_].ended = true;
  gaps_[last_].begun = false;
  return gaps_[last_].end.set(stream);
}

Result<void> IdleTimes::begin_step(const Stream& stream) {
  if (gaps_.empty()) return {};
  Gap& gap = gaps_[last_];
  if (!gap.ended || gap.begun) return {};
  gap.begun = true;
  return gap.begin.set(stream);
}

Result<void> IdleTimes::collect(bool all) {
  if (gaps_.empty()) return {};
  for (const std::size_t k : {1 - last_, last_}) {
    Gap& gap = gaps_[k];
    if (k == last_ && !all) continue;
    if (gap.ended && gap.begun) {
      const auto seconds = gap.begin.seconds_since(gap.end);
      if (!seconds) return seconds.error();
      seconds_.push_back(*seconds);
    }
    gap.ended = gap.begun = false;
  }
  return {};
}

}  // namespace lathe::cuda
