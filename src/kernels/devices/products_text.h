// products_text(): a precision of GEMMs in words.
#pragma once

#include <string>

#include "kernels/linear.h"

namespace lathe {

/// What a precision multiplies with which weights, in one line. For int8 that depends on the CPU.
/// `fp8`: it multiplies fp8 weights as 8-bit integers too (is_int8_dot_weight()). `bf16`: it
/// multiplies pairs of bf16 (cpu_has_bf16_dot()); one without uses f32.
std::string products_text(MatmulPrecision precision, bool fp8, bool bf16);
/// The same on this machine.
std::string products_text(MatmulPrecision precision);

}  // namespace lathe
