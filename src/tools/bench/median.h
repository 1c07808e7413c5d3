// The median of a bench's repeats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lathe {

/// The mean of both in the middle where `values`, at least one, are even in number.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace lathe
