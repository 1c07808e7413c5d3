// IdleTimes: how long no kernel runs between a step and the recorded one behind it. The copy of
// that one's lists counts.
#pragma once

#include <utility>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/common/stream.h"

namespace lathe::cuda {

class IdleTimes {
 public:
  /// Measures from here on. Errors: the runtime's.
  Result<void> start();
  void stop() { gaps_.clear(); }
  /// After all of a step.
  Result<void> end_step(const Stream& stream);
  /// Before the recording of the step behind it.
  Result<void> begin_step(const Stream& stream);
  /// The device has done all before the last end_step(), or all of it.
  Result<void> collect(bool all);
  /// Seconds, since the last call.
  std::vector<double> take() { return std::exchange(seconds_, {}); }

 private:
  struct Gap {
    Mark end, begin;
    bool ended = false, begun = false;
  };
  std::vector<Gap> gaps_;  // two: one is still open while the other is read
  std::size_t last_ = 0;   // that of the last end_step()
  std::vector<double> seconds_;
};

}  // namespace lathe::cuda
