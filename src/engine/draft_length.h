// DraftLength: how many tokens to draft for a request, from how many of its drafts were accepted.
//
// A draft that is rejected has cost a row, and where batches are large a row costs nearly what a
// token does. So the length follows acceptance, falls with the number of running requests, and is 0
// where drafts are not worth it. It depends on counts alone, so a run's steps can be repeated.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lathe {

/// Most drafts of each request while so many run.
constexpr std::int64_t drafts_at(std::int64_t running) {
  return running >= 64 ? 0 : running >= 32 ? 1 : running >= 8 ? 3 : 7;
}

class DraftLength {
 public:
  DraftLength() = default;
  /// `most`: the most drafts that the user allows.
  explicit DraftLength(std::int64_t most) : most_(most), accepted_(static_cast<double>(most) / 2) {}

  /// Drafts wanted in this step.
  std::int64_t wanted() const {
    if (off()) return silent_ >= probe_ ? std::min<std::int64_t>(1, most_) : 0;
    return std::min(most_, static_cast<std::int64_t>(accepted_ + 0.5) + 1);
  }
  /// The request decoded without drafts, though they were allowed.
  void skip() {
    if (off()) ++silent_;
  }
  /// `accepted` of `drafted` tokens, at least one, were right.
  void record(std::int64_t drafted, std::int64_t accepted) {
    silent_ = 0;
    if (accepted > 0) {
      probe_ = kProbe;
    } else if (off()) {
      probe_ = std::min(2 * probe_, kLongestProbe);
    }
    const auto a = static_cast<double>(accepted);
    // All of fewer drafts than wanted: the rest might have been right, too.
    const double sample = accepted == drafted ? std::max(accepted_, a) : a;
    accepted_ += kWeight * (sample - accepted_);
    low_ = accepted_ < kLow ? low_ + 1 : 0;
  }

 private:
  static constexpr double kWeight = 0.2;
  static constexpr double kLow = 0.25;         // accepted drafts a step that are not worth it
  static constexpr std::int64_t kLowRuns = 8;  // in so many steps one after another
  // Then one draft after so many steps without, twice as many after each that was wrong.
  static constexpr std::int64_t kProbe = 16, kLongestProbe = 256;
  bool off() const { return low_ >= kLowRuns; }

  std::int64_t most_ = 0;
  double accepted_ = 0;      // a moving average over steps with drafts
  std::int64_t low_ = 0;     // steps with drafts since the average fell below kLow
  std::int64_t silent_ = 0;  // steps without drafts since it is off
  std::int64_t probe_ = kProbe;
};

}  // namespace lathe
