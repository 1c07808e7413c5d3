// Runs a loop over independent rows in parallel.
#pragma once

#include <cstdint>

#include "base/execution.h"

namespace lathe {

/// Calls body(row) for every row, in parallel. With few rows x elements it stays on the calling
/// thread, because a parallel region costs microseconds.
template <class Body>
void for_rows(const Execution& execution, std::int64_t rows, std::int64_t elements, Body&& body) {
  constexpr std::int64_t kWorthThreads = 1 << 16;  // least rows x elements
  if (execution.threads == nullptr || rows * elements < kWorthThreads) {
    for (std::int64_t t = 0; t < rows; ++t) body(t);
    return;
  }
  execution.threads->run(rows, [&](std::int64_t t, int) { body(t); });
}

}  // namespace lathe
