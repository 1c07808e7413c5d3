// Runs the tasks of a call on threads; rounding for sizes of tasks and buffers.
#pragma once

#include <cstdint>

#include "base/execution.h"
#include "base/integers.h"

namespace lathe {

/// Rounds up to whole cache lines.
constexpr std::int64_t whole_lines(std::int64_t bytes) { return ceil_div(bytes, 64) * 64; }

inline std::int64_t thread_count(const Execution& execution) {
  return execution.threads == nullptr ? 1 : execution.threads->threads();
}

/// Calls body(task, worker) for all tasks, on the execution's threads if it has any.
template <class Body>
void run_tasks(const Execution& execution, std::int64_t tasks, Body body) {
  if (execution.threads != nullptr) return execution.threads->run(tasks, body);
  for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
}

}  // namespace lathe
