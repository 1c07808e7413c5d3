// StepStart: work before a step's first operator, that is schedules and input tokens that the step
// in flight is still sampling. It is delayed until that operator, so that all lists go to the
// device in one copy and a graph captures this work too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/operators.h"
#include "step/attend_op.h"

namespace lathe::cuda {

class StepStart {
 public:
  /// Adds a schedule to make; step.view.schedule stays null until run().
  void schedule(const Plan& plan, const KeyPools& pools, const Execution& execution,
                PreparedStep& step);
  /// Sets the tokens to replace by sampled ones, both on the device (TakeDrawnParams).
  void take(std::span<const std::int32_t> tokens, const std::int32_t* drawn, std::int64_t step);
  /// Hash of what a captured run() depends on. Schedules are left out: they have the bounds of
  /// the operators, which the key of replay() covers.
  std::uint64_t key() const;
  /// Launches the collected work, once. Errors: a launch; out of memory.
  Result<void> run(cudaStream_t stream);
  /// Forgets the collected work: a replayed graph has done it, or the step has failed.
  void clear();

 private:
  struct Unscheduled {
    const Plan* plan;
    KeyPools pools;
    Execution execution;
    PreparedStep* step;
  };
  Result<void> make_schedules();
  Result<void> take_tokens(cudaStream_t stream) const;

  std::vector<Unscheduled> unscheduled_;
  std::span<const std::int32_t> taken_;
  const std::int32_t* drawn_ = nullptr;
  std::int64_t step_ = 1;
};

}  // namespace lathe::cuda
