#include "kernels/cpu/matmul/matmul_rounded.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rows.h"
#include "kernels/cpu/common/for_rows.h"
#include "kernels/cpu/matmul/matmul.h"

namespace lathe {
namespace {

constexpr float kMostE4m3 = 448;

void round_row(const float* x, std::int64_t n, bool to_codes, bool power_of_two, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_f32(to_bf16(x[i]));
  if (!to_codes) return;
  for (std::int64_t first = 0; first < n; first += kWeightBlock) {
    const std::int64_t end = std::min(n, first + kWeightBlock);
    float most = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const float size = std::abs(out[i]);
      most = size > most || std::isnan(size) ? size : most;
    }
    float scale = most == 0 ? 1.f : most / kMostE4m3;
    if (power_of_two) scale = pow2_ceil(scale);
    for (std::int64_t i = first; i < end; ++i) out[i] = to_f32(to_e4m3(out[i] / scale)) * scale;
  }
}

}  // namespace

void cpu_round_x(const Execution& execution, const RowsView& x, DType weights,
                 MatmulPrecision precision, const MutableRowsView& out) {
  const bool to_codes = rounds_to_e4m3(precision, weights);
  for_rows(execution, x.rows, 8 * x.cols, [&](std::int64_t row) {
    round_row(reinterpret_cast<const float*>(x.row(row)), x.cols, to_codes,
              precision == MatmulPrecision::fp8_pow2, reinterpret_cast<float*>(out.row(row)));
  });
}

void cpu_matmul_rounded(const Execution& execution, Arena& arena, MatmulPrecision precision,
                        std::span<const Product> products) {
  const Arena::Scope scope(arena);
  std::vector<Product> rounded(products.begin(), products.end());
  for (Product& p : rounded) {
    const MutableRowsView x = alloc_rows(arena, p.x.rows, p.x.cols);
    cpu_round_x(execution, p.x, p.w.dtype, precision, x);
    p.x = constant(x);
  }
  cpu_matmul(execution, arena, MatmulPrecision::f32, rounded);
}

}  // namespace lathe
