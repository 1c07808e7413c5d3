// Limits of integers, and division and multiples rounded up.
#pragma once

#include <cstdint>
#include <limits>

namespace lathe {

inline constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

/// a / b rounded up. a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The least multiple of b that is a or more. a >= 0, b > 0.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace lathe
