#include "kernels/cuda/runtime/step_start.h"

#include <fmt/format.h>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/sampling/sampling.h"

namespace lathe::cuda {

void StepStart::schedule(const Plan& plan, const KeyPools& pools, const Execution& execution,
                         PreparedStep& step) {
  step.view.schedule = nullptr;
  unscheduled_.push_back({&plan, pools, execution, &step});
}

void StepStart::take(std::span<const std::int32_t> tokens, const std::int32_t* drawn,
                     std::int64_t step) {
  taken_ = tokens;
  drawn_ = drawn;
  step_ = step;
}

std::uint64_t StepStart::key() const {
  if (taken_.empty()) return 0;
  return reinterpret_cast<std::uintptr_t>(drawn_) * 0x9e3779b97f4a7c15u;
}

Result<void> StepStart::run(cudaStream_t stream) {
  if (unscheduled_.empty() && taken_.empty()) return {};
  Result<void> ok = make_schedules();
  if (ok) ok = take_tokens(stream);
  clear();
  return ok;
}

void StepStart::clear() {
  unscheduled_.clear();
  taken_ = {};
}

Result<void> StepStart::make_schedules() {
  for (const auto& [plan, pools, execution, step] : unscheduled_) {
    if (auto ok = make_schedule(*plan, pools, execution, step->schedule, step->view); !ok) {
      return ok;
    }
  }
  return {};
}

Result<void> StepStart::take_tokens(cudaStream_t stream) const {
  const TakeDrawnParams p{.tokens = const_cast<std::int32_t*>(taken_.data()),
                          .drawn = drawn_,
                          .count = std::ssize(taken_),
                          .step = step_};
  return launch_result(
      launch_take_drawn(p, stream),
      {"take_drawn", fmt::format("{} rows", taken_.size()), std::source_location::current()});
}

}  // namespace lathe::cuda
