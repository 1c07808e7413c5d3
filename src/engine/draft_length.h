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

/// Where drafts are off: steps without any, and after how many one is tried.
struct DraftSilence {
  std::int64_t steps = 0;
  std::int64_t probe = 16;
};

class DraftLength {
 public:
  DraftLength() = default;
  /// `most`: the most drafts that the user allows. `start` and `silence`: where the average and the
  /// waiting begin, such as where other requests have been, as short answers leave no time to
  /// learn. `cost`: what making a draft takes, as a share of a row of the model.
  DraftLength(std::int64_t most, double start, double cost = 0, DraftSilence silence = {})
      : most_(most),
        good_(start),
        least_(2 * (kRowShare + cost)),
        low_(start < least_ ? kLowRuns : 0),
        silence_(silence) {}

  /// Drafts wanted in this step.
  std::int64_t wanted() const {
    if (off() && silence_.steps < silence_.probe) return 0;
    const auto n = off() ? 1 : static_cast<std::int64_t>(good_ + 0.5);
    return std::min(most_, std::max<std::int64_t>(1, n));
  }
  /// The request decoded without drafts, though they were allowed.
  void skip() {
    if (off()) ++silence_.steps;
  }
  /// `accepted` of `drafted` tokens, at least one, were right. Returns how many would have been
  /// good to draft: where all were right, one more, though `most` may not allow it.
  double record(std::int64_t drafted, std::int64_t accepted) {
    silence_.steps = 0;
    if (accepted > 0) {
      silence_.probe = std::max(silence_.probe / 2, DraftSilence().probe);
    } else if (off()) {
      silence_.probe = std::min(2 * silence_.probe, kLongestProbe);
    }
    auto sample = static_cast<double>(accepted);
    if (accepted == drafted) {
      sample = std::max(good_, static_cast<double>(accepted + 1));
    }
    good_ += kWeight * (sample - good_);
    low_ = good_ < least_ ? low_ + 1 : 0;
    return sample;
  }
  DraftSilence silence() const { return silence_; }

 private:
  static constexpr double kWeight = 0.2;
  // The row of a draft costs about so much of a step. Single drafts pay where a larger share of
  // them is right; the average is twice that share.
  static constexpr double kRowShare = 0.35;
  static constexpr std::int64_t kLowRuns = 4;  // in so many steps one after another
  // Twice as many steps without drafts after each that was tried and wrong, up to so many, and half
  // as many after one that was right.
  static constexpr std::int64_t kLongestProbe = 256;
  bool off() const { return low_ >= kLowRuns; }

  std::int64_t most_ = 0;
  double good_ = 0;       // a moving average over steps with drafts
  double least_ = 0;      // of the average, where drafts pay
  std::int64_t low_ = 0;  // steps with drafts since the average fell below it
  DraftSilence silence_;
};

}  // namespace lathe
