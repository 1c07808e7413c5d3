// Orders copies whose sources and destinations overlap, so that they can run one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lathe {

/// Names the scratch record outside the pool, which holds one record while a cycle is rotated.
inline constexpr std::int32_t kCopyScratch = -1;

struct CopyStep {
  std::int32_t from = 0;  // kCopyScratch: the scratch record
  std::int32_t to = 0;
  constexpr bool operator==(const CopyStep&) const = default;
};

/// Steps that copy every src[i] to dst[i], as if all sources were read before the first write.
/// Leaves out copies of x to x. Preconditions: equal sizes, all values >= 0, no dst appears twice.
/// O(n) time and memory.
std::vector<CopyStep> copy_order(std::span<const std::int32_t> src,
                                 std::span<const std::int32_t> dst);

}  // namespace lathe
