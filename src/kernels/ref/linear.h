// Products with weights in double precision: the oracle of the devices' matmuls.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/linear.h"

namespace lathe {

/// Element of a weight, widened to f32 as every device does: code x factor rounded once.
float weight_at(const WeightView& w, std::int64_t row, std::int64_t col);

/// Every product on the calling thread, summed in double and rounded once.
void ref_head_matmul(const HeadProducts& op);
void ref_matmul(std::span<const Product> products);

}  // namespace lathe
