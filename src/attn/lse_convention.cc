#include "attn/lse_convention.h"

#include <limits>
#include <numbers>

namespace lathe {

double by_convention(LseConvention convention, double natural) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (natural == -kInf) return convention.empty_plus_inf ? kInf : -kInf;
  return convention.base_2 ? natural * std::numbers::log2e : natural;
}

}  // namespace lathe
