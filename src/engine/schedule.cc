#include "engine/schedule.h"

#include <algorithm>

namespace lathe {
namespace {

// Pages that a request lacks to hold all its tokens and the next one.
std::int64_t missing(const ScheduledRequest& r, std::int64_t page_size) {
  return std::max<std::int64_t>(0, pages_for(r.known + 1, page_size) - r.pages);
}

}  // namespace

Schedule schedule_running(std::span<const ScheduledRequest> running, const ScheduleLimits& limits,
                          std::int64_t available, std::span<std::int64_t> rows) {
  std::int64_t budget = limits.prefill_rows;
  for (std::size_t i = 0; i < running.size(); ++i) {
    const ScheduledRequest& r = running[i];
    rows[i] = r.decodes() ? 1 : std::min(r.known - r.computed, budget);
    const std::int64_t needed = pages_for(r.computed + rows[i], limits.page_size) - r.pages;
    if (needed > available) {
      if (r.decodes() || i + 1 < running.size()) return {true, 0};
      rows[i] = (r.pages + available) * limits.page_size - r.computed;
      available = 0;
    } else {
      available -= std::max<std::int64_t>(0, needed);
    }
    if (!r.decodes()) budget -= rows[i];
  }
  return {false, budget};
}

bool admits(std::span<const ScheduledRequest> running, const ScheduledRequest& next,
            const ScheduleLimits& limits, std::int64_t available) {
  std::int64_t reserve = missing(next, limits.page_size);
  for (const ScheduledRequest& r : running) reserve += missing(r, limits.page_size);
  return reserve <= available;
}

}  // namespace lathe
