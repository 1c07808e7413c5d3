// GEMMs in double precision, element by element: the oracle of the devices' GEMMs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/linear.h"

namespace lathe {

/// An element of a weight, widened to f32 as on every device: code x scale, rounded once.
float weight_at(const WeightView& w, std::int64_t row, std::int64_t col);

/// Computed on the calling thread; each sum is in double and rounded once.
void ref_head_matmul(const HeadProducts& op);
void ref_matmul(std::span<const Product> products);

}  // namespace lathe
