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
  /// `most`: the most drafts that the user allows. `start`: where the average begins, such as what
  /// other requests have had, as short answers leave no time to learn.
  DraftLength(std::int64_t most, double start)
      : most_(most), good_(start), low_(start < kLow ? kLowRuns : 0) {}

  /// Drafts wanted in this step.
  std::int64_t wanted() const {
    if (off() && silent_ < probe_) return 0;
    const auto n = off() ? 1 : static_cast<std::int64_t>(good_ + 0.5);
    return std::min(most_, std::max<std::int64_t>(1, n));
  }
  /// The request decoded without drafts, though they were allowed.
  void skip() {
    if (off()) ++silent_;
  }
  /// `accepted` of `drafted` tokens, at least one, were right. Returns how many would have been
  /// good to draft: where all were right, one more.
  double record(std::int64_t drafted, std::int64_t accepted) {
    silent_ = 0;
    if (accepted > 0) {
      probe_ = kProbe;
    } else if (off()) {
      probe_ = std::min(2 * probe_, kLongestProbe);
    }
    auto sample = static_cast<double>(accepted);
    if (accepted == drafted) {
      sample = std::max(good_, static_cast<double>(std::min(most_, accepted + 1)));
    }
    good_ += kWeight * (sample - good_);
    low_ = good_ < kLow ? low_ + 1 : 0;
    return sample;
  }

 private:
  static constexpr double kWeight = 0.2;
  // Of single drafts a third is right then, which does not pay where a row costs half a token.
  static constexpr double kLow = 0.7;
  static constexpr std::int64_t kLowRuns = 4;  // in so many steps one after another
  // Then one draft after so many steps without, twice as many after each that was wrong.
  static constexpr std::int64_t kProbe = 16, kLongestProbe = 256;
  bool off() const { return low_ >= kLowRuns; }

  std::int64_t most_ = 0;
  double good_ = 0;          // a moving average over steps with drafts
  std::int64_t low_ = 0;     // steps with drafts since the average fell below kLow
  std::int64_t silent_ = 0;  // steps without drafts since it is off
  std::int64_t probe_ = kProbe;
};

}  // namespace lathe
