#include "kernels/ref/merge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.h"

namespace lathe {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();

}  // namespace

double merge_states(std::span<const double> out_a, double lse_a, std::span<const double> out_b,
                    double lse_b, std::span<double> out) {
  LATHE_CHECK(out_a.size() == out.size() && out_b.size() == out.size(), "partials differ in width");
  if (lse_a == kEmpty && lse_b == kEmpty) {
    std::ranges::fill(out, 0.0);
    return kEmpty;
  }
  if (lse_b == kEmpty) {
    if (out.data() != out_a.data()) std::ranges::copy(out_a, out.begin());
    return lse_a;
  }
  if (lse_a == kEmpty) {
    if (out.data() != out_b.data()) std::ranges::copy(out_b, out.begin());
    return lse_b;
  }
  const double m = std::max(lse_a, lse_b);
  const double wa = std::exp(lse_a - m);
  const double wb = std::exp(lse_b - m);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = (out_a[i] * wa + out_b[i] * wb) / (wa + wb);
  }
  return m + std::log(wa + wb);
}

void apply_sink(std::span<double> out, double lse, double sink) {
  // Without a key, out is 0 already, and the difference to a sink of -inf would be NaN.
  if (lse == kEmpty) return;
  // If the sink is far above every score, the exponential overflows and the factor is 0.
  const double factor = 1 / (1 + std::exp(sink - lse));
  for (double& x : out) x *= factor;
}

}  // namespace lathe
