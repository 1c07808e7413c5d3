// Which rows of a step leave a state in their slot (StepView::state_before).
#pragma once

#include <cstdint>

#include "layout/pages/state_pool.h"
#include "step/step.h"

namespace lathe {

/// How many of a request's last rows each leave a state.
constexpr std::int64_t last_states(const StepView& step, const StateView& state) {
  return step.phase == Phase::verify ? state.banks : 1;
}

/// Whether a request's row at position p leaves a state; `end` is one past its last position.
constexpr bool leaves_state(const StepView& step, const StateView& state, std::int64_t p,
                            std::int64_t end) {
  return p >= end - last_states(step, state) || (p + 1) % step.state_tokens == 0;
}

}  // namespace lathe
