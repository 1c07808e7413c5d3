// GEMMs of int4 weights with activations rounded to 8-bit integers (AVX512_VNNI).
//
// Rounding. The columns of x that share a scale of the weight (a group of 32, 64 or 128) have one
// scale too, their largest size / 127, and are rounded to whole multiples of it (nearest even). A
// group with a value that is not finite has the scale NaN. A group of values below 1e-30 counts as
// zeros. Weights are exact.
//
// Order of sums. Products of codes are summed exactly in 32-bit integers within a group. Groups are
// added in ascending order: sum = fma(float(integer sum), weight scale * x scale, sum). So a row's
// bits depend neither on other rows nor on other outputs.
#pragma once

#include <span>

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

/// Whether this CPU has the instructions (AVX512_VNNI and AVX512BW) and the compiler supports them.
bool cpu_has_int8_dot();

/// Whether x is rounded to 8-bit integers for this weight.
constexpr bool is_int8_dot_weight(DType w) { return w == DType::u4; }

/// cpu_matmul() for weights of int4. Preconditions: cpu_has_int8_dot(); for each product
/// is_int8_dot_weight() and no w.columns.
void cpu_matmul_int8(const Execution& execution, Arena& arena, std::span<const Product> products);

}  // namespace lathe
