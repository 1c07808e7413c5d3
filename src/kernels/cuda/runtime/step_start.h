// What comes before a step's first operator: schedules, and tokens from the step in flight. It
// waits for that operator, so that all lists travel in one copy and a recording takes it in.
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
  /// A schedule to be made; step.view has none until then.
  void schedule(const Plan& plan, const KeyPools& pools, const Execution& execution,
                PreparedStep& step);
  /// Tokens to be taken from those drawn, both on the device (TakeDrawnParams).
  void take(std::span<const std::int32_t> tokens, const std::int32_t* drawn);
  /// Hashes what a recording of run() holds besides schedules, whose bounds are the operators',
  /// too.
  std::uint64_t key() const;
  /// Puts it on the stream, once. Errors: a launch, no memory.
  Result<void> run(cudaStream_t stream);
  /// A recording has done so, or the step has failed.
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
};

}  // namespace lathe::cuda
