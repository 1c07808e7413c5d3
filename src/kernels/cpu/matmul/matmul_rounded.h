// Products whose x is rounded first, in f32: what other devices' arithmetic is compared with.
#pragma once

#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

/// out (f32, of x's shape) = x as products in `precision`, bf16 or an fp8, read it with weights of
/// type `weights`: rounded to bf16; and to e4m3 where rounds_to_e4m3(), code times scale. The scale
/// of 128 neighbours is amax / 448, or that rounded up to a power of two, and 1 where all are 0.
void cpu_round_x(const Execution& execution, const RowsView& x, DType weights,
                 MatmulPrecision precision, const MutableRowsView& out);

/// cpu_matmul() in f32 with x rounded like that. Needs no instructions for bf16.
void cpu_matmul_rounded(const Execution& execution, Arena& arena, MatmulPrecision precision,
                        std::span<const Product> products);

}  // namespace lathe
