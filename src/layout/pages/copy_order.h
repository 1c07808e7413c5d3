// The order in which overlapping copies can be done one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lathe {

/// Stands for the place outside the pool that holds one record while a cycle is rotated.
inline constexpr std::int32_t kCopyScratch = -1;

struct CopyStep {
  std::int32_t from = 0;  // kCopyScratch: the scratch record
  std::int32_t to = 0;
  constexpr bool operator==(const CopyStep&) const = default;
};

/// Steps that, one by one, leave at every dst[i] what lay at src[i] before the first of them. Steps
/// of the form x to x are left out. Preconditions: sizes are equal, all values are >= 0 and no dst
/// appears twice. O(n) time and memory.
std::vector<CopyStep> copy_order(std::span<const std::int32_t> src,
                                 std::span<const std::int32_t> dst);

}  // namespace lathe
