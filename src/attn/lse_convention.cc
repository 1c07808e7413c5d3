#include "attn/lse_convention.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace lathe {
namespace {

template <class T>
void rewrite(LseConvention convention, const MutableRowsView& lse) {
  for (std::int64_t r = 0; r < lse.rows; ++r) {
    T* row = reinterpret_cast<T*>(lse.row(r));
    for (std::int64_t h = 0; h < lse.cols; ++h) {
      if (std::isinf(row[h]) && row[h] < 0) {
        if (convention.empty_plus_inf) row[h] = std::numeric_limits<T>::infinity();
      } else if (convention.base_2) {
        row[h] = static_cast<T>(static_cast<double>(row[h]) * std::numbers::log2e);
      }
    }
  }
}

}  // namespace

void convert_lse(LseConvention convention, const MutableRowsView& lse) {
  if (lse.data == nullptr || !(convention.base_2 || convention.empty_plus_inf)) return;
  if (lse.dtype == DType::f64) {
    rewrite<double>(convention, lse);
  } else {
    rewrite<float>(convention, lse);
  }
}

}  // namespace lathe
