// Helpers of step.cc and step_fill.cc.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/integers.h"
#include "base/result.h"
#include "step/step.h"

namespace lathe::step_internal {

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Error (exhausted) if `offered` exceeds the step's bound.
inline Result<void> within(std::string what, std::int64_t offered, std::int64_t bound) {
  if (offered <= bound) return {};
  return Error{ErrorCode::exhausted, std::move(what), fmt::format("at most {}", bound),
               fmt::format("{}", offered), "split the batch, or plan for a larger one"};
}

/// The first n elements of an array.
template <class T>
std::span<T> front(std::vector<T>& array, std::int64_t n) {
  return std::span(array).first(at(n));
}

}  // namespace lathe::step_internal
