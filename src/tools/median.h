// The median of a bench's repeats.
#pragma once

#include <algorithm>
#include <vector>

namespace lathe {

/// The upper of the two in the middle where `values`, which are not none, are even in number.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace lathe
