// DraftLength: how many tokens to draft for a request, given how many of its drafts were accepted.
//
// A rejected draft costs a row, which in large batches costs nearly as much as a token. So the
// length follows acceptance, falls with the number of running requests, and is 0 where drafts do
// not pay. It depends on counts alone, so runs are reproducible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lathe {

/// While drafts are off: steps since the last draft, and after how many to try one.
struct DraftSilence {
  std::int64_t steps = 0;
  std::int64_t probe = 16;
};

/// Cost of a draft's row while `running` requests run, as a share of the cost of a decode row. On a
/// CPU few rows share a read of the weights (bench/notes/cpu-models/02-rows-of-drafts.md); a GPU
/// reads the weights once for all rows.
constexpr double draft_row_share(std::int64_t running, bool host) {
  if (!host) return 0.35;
  return running >= 32 ? 0.85 : running >= 16 ? 0.7 : running >= 8 ? 0.55 : 0.45;
}

/// Whether a draft's row costs so much that drafts must be rare: many requests run on a CPU.
constexpr bool rows_are_dear(double row_share) { return row_share > 0.5; }

class DraftLength {
 public:
  DraftLength() = default;
  /// `most`: the user's limit on drafts. `start` and `silence`: the average and the silence to
  /// begin with, copied from other requests, since short answers leave no time to learn. `cost`: of
  /// making a draft, as a share of a row of the model.
  DraftLength(std::int64_t most, double start, double cost = 0, DraftSilence silence = {})
      : most_(most),
        good_(start),
        cost_(cost),
        least_(2 * (draft_row_share(1, false) + cost)),
        low_(start < least_ ? kLowRuns : 0),
        silence_(silence) {}

  /// Called before each step. `row_share`: draft_row_share() of the step. `others`: the average
  /// over all requests. While many run, that average limits this request's until it has had a few
  /// checks of its own. Otherwise requests that begin together would each pay to learn the same.
  void adapt(double row_share, double others) {
    row_share_ = row_share;
    least_ = 2 * (row_share + cost_);
    if (!many() || checks_ >= kOwnChecks) return;
    good_ = std::min(good_, others);
    if (good_ < least_) low_ = kLowRuns;
  }
  /// Drafts to make in this step.
  std::int64_t wanted() const {
    if (many() && row_share_ + cost_ >= 1) return 0;  // costs more than a token, even if accepted
    if (off() && silence_.steps < until_probe()) return 0;
    const auto n = off() ? 1 : static_cast<std::int64_t>(good_ + 0.5);
    return std::min(most_, std::max<std::int64_t>(1, n));
  }
  /// Records a step without drafts although they were allowed.
  void skip() {
    if (off()) ++silence_.steps;
  }
  /// Records that `accepted` of `drafted` >= 1 tokens were accepted. Returns how many drafts would
  /// have been best: one more if all were accepted, even above `most`.
  double record(std::int64_t drafted, std::int64_t accepted) {
    silence_.steps = 0;
    ++checks_;
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
  static constexpr std::int64_t kOwnChecks = 4;
  static constexpr std::int64_t kLowRuns = 4;  // consecutive low steps that turn drafts off
  // The silence doubles after each rejected probe, up to this many steps, and halves after an
  // accepted one.
  static constexpr std::int64_t kLongestProbe = 256;
  bool off() const { return low_ >= kLowRuns && good_ < least_; }
  bool many() const { return rows_are_dear(row_share_); }
  // While many run, a probe costs more, and the probes of other requests teach as much.
  std::int64_t until_probe() const { return silence_.probe * (many() ? 4 : 1); }

  std::int64_t most_ = 0;
  double good_ = 0;  // a moving average over steps with drafts
  double cost_ = 0;
  double row_share_ = 0;
  // Least average at which drafts pay. A single draft pays if its chance to be accepted is above
  // its cost; the average is twice that chance.
  double least_ = 0;
  std::int64_t checks_ = 0;
  std::int64_t low_ = 0;  // steps with drafts since the average fell below least_
  DraftSilence silence_;
};

/// Whether a batch drafts at all, on a device where decode steps start before the results of the
/// step before (Engine::launch_ahead()). A step with drafts cannot be followed so, because its
/// results decide everything in the next. With few requests little is lost. With many, a few
/// accepted drafts do not make up for it.
class BatchDrafts {
 public:
  bool rests(std::int64_t running) const { return running >= kMany && rest_ > 0; }
  /// A step has begun.
  void step() { rest_ = std::max<std::int64_t>(0, rest_ - 1); }
  /// Records a step in which the drafter was asked, and `accepted` of its drafts were right.
  void record(std::int64_t running, std::int64_t accepted) {
    if (running < kMany) return;
    good_ += kWeight * (static_cast<double>(accepted) / static_cast<double>(running) - good_);
    if (good_ >= kLeast) {
      pause_ = kShortest;
      return;
    }
    rest_ = pause_;
    pause_ = std::min(2 * pause_, kLongest);
    good_ = kLeast;
  }

 private:
  static constexpr std::int64_t kMany = 8;
  static constexpr double kLeast = 0.25;  // of a token, for each request and step
  static constexpr double kWeight = 0.2;
  static constexpr std::int64_t kShortest = 16, kLongest = 256;  // steps
  double good_ = kLeast;  // a moving average of accepted drafts
  std::int64_t rest_ = 0, pause_ = kShortest;
};

}  // namespace lathe
