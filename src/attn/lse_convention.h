// How a caller wants the log-sum-exp (LSE) of a row's scores.
#pragma once

namespace lathe {

struct LseConvention {
  bool base_2 = false;          // base 2, as FlashInfer; false: natural logarithm
  bool empty_plus_inf = false;  // a row without keys is +inf, as in FlashMLA; false: -inf
};

/// Converts an LSE with natural logarithm, or the -inf of a row without keys.
double by_convention(LseConvention convention, double natural);

}  // namespace lathe
