// GEMMs of int4 and e4m3 weights with activations rounded to 8-bit integers (AVX512_VNNI).
//
// Rounding of x. The columns of a group (int4: those that share a scale of the weight, 32, 64 or
// 128; e4m3: 128) have one scale, their largest size / 127, and are rounded to whole multiples of
// it (nearest even). A group with a value that is not finite has the scale NaN. A group of values
// below 1e-30 counts as zeros.
//
// Rounding of weights. int4 is exact. Codes of e4m3 in a group of an output become integers: whole
// multiples (nearest even) of 2^(e - 6), where 2^e is the largest power of two that is not above
// the group's largest size, and at least 2^-6. So weights of at least 2^(e - 3) are exact, and
// others are off by at most 2^(e - 7). The unit times the scale of the weight's block is the
// group's scale. Scales of rows multiply the sums.
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

/// Whether x is rounded to 8-bit integers for weights of this dtype: u4, and e4m3 if the CPU has
/// AVX512_VBMI too.
bool is_int8_dot_weight(DType w);

/// cpu_matmul() by 8-bit integers. Preconditions: for each product is_int8_dot_weight(), columns
/// and no w.columns.
void cpu_matmul_int8(const Execution& execution, Arena& arena, std::span<const Product> products);

}  // namespace lathe
