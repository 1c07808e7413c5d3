#include "kernels/ref/attend_row.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace lathe {

double attend_row(std::span<const double> q, DoubleRows keys, DoubleRows values, std::int64_t count,
                  double scale, std::span<double> out) {
  constexpr double kEmpty = -std::numeric_limits<double>::infinity();
  std::vector<double> weights(static_cast<std::size_t>(count));
  double highest = kEmpty;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const double> key = keys.row(i, q.size());
    double dot = 0;
    for (std::size_t e = 0; e < q.size(); ++e) dot += q[e] * key[e];
    weights[static_cast<std::size_t>(i)] = scale * dot;
    highest = std::max(highest, scale * dot);  // a NaN score leaves `highest` as it is
  }
  // If every score is -inf, the difference to the maximum, -inf - -inf, would be NaN.
  if (highest == kEmpty) highest = 0;

  double sum = 0;
  for (double& w : weights) {
    w = std::exp(w - highest);
    sum += w;
  }
  std::ranges::fill(out, 0.0);
  if (sum == 0) return kEmpty;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const double> value = values.row(i, out.size());
    const double weight = weights[static_cast<std::size_t>(i)] / sum;
    for (std::size_t e = 0; e < out.size(); ++e) out[e] += weight * value[e];
  }
  return highest + std::log(sum);
}

}  // namespace lathe
