// Division by a number known only at launch: a multiplication and a shift instead of the twenty
// instructions of an integer division.
#pragma once

#include <cstdint>

#include "base/float_formats.h"

namespace lathe::cuda {

/// n / divisor for 0 <= n < 2^31 and 1 <= divisor < 2^31. Source: Granlund and Montgomery,
/// "Division by invariant integers using multiplication" (1994), for 31-bit n.
struct FastDiv {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 0;  // 0: the divisor is a power of two
  std::uint32_t shift = 0;

  constexpr FastDiv() = default;
  constexpr explicit FastDiv(std::int64_t d) : divisor(static_cast<std::uint32_t>(d)) {
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    if ((divisor & (divisor - 1)) == 0) return;
    // ceil(2^(31 + shift) / divisor) fits 32 bits, as 2^(shift - 1) < divisor.
    const std::uint64_t power = std::uint64_t{1} << (31 + shift);
    multiplier = static_cast<std::uint32_t>((power + divisor - 1) / divisor);
    --shift;
  }

  LATHE_HD std::uint32_t operator()(std::uint32_t n) const {
    if (multiplier == 0) return n >> shift;
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> 32) >> shift;
  }
};

}  // namespace lathe::cuda
