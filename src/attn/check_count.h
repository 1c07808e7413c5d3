// The most common checks of arguments: counts and ranges.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/integers.h"
#include "base/result.h"

namespace lathe {

inline Error bad_value(std::string field, std::string wanted, std::string offered,
                       std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

inline Error bad_number(std::string field, std::string wanted, std::int64_t offered) {
  return bad_value(std::move(field), std::move(wanted), fmt::format("{}", offered));
}

template <class T>
Result<void> check_count(const char* field, std::span<T> list, std::int64_t wanted) {
  if (std::ssize(list) == wanted) return {};
  return bad_number(field, fmt::format("{} entries", wanted), std::ssize(list));
}

/// Errors unless least <= value < 2^31.
inline Result<void> check_range(const char* field, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kMaxInt32) return {};
  return bad_number(field, fmt::format("{} to {}", least, kMaxInt32), value);
}

}  // namespace lathe
