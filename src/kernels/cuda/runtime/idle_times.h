// IdleTimes: how long the GPU is idle between a step and the recorded step after it. The copy of
// that step's lists counts as idle time, because no kernel runs.
#pragma once

#include <utility>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/common/stream.h"

namespace lathe::cuda {

class IdleTimes {
 public:
  /// Starts measuring. Errors: of the CUDA runtime.
  Result<void> start();
  void stop() { gaps_.clear(); }
  /// Call after a step's last operator.
  Result<void> end_step(const Stream& stream);
  /// Call before the recorded step that follows.
  Result<void> begin_step(const Stream& stream);
  /// Reads the finished gaps. Precondition: the device has done all work before the last
  /// end_step(), or with `all` everything so far.
  Result<void> collect(bool all);
  /// Measured gaps in seconds, since the last call.
  std::vector<double> take() { return std::exchange(seconds_, {}); }

 private:
  struct Gap {
    Mark end, begin;
    bool ended = false, begun = false;
  };
  std::vector<Gap> gaps_;  // two: one is still open while the other is read
  std::size_t last_ = 0;   // gap of the last end_step()
  std::vector<double> seconds_;
};

}  // namespace lathe::cuda
