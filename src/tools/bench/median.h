// The median of a bench's repeats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace lathe {

/// The mean of the middle two if there is an even number of values. Precondition: at least one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/// 0 without values.
inline double median_or_zero(std::vector<double> values) {
  return values.empty() ? 0 : median(std::move(values));
}

}  // namespace lathe
