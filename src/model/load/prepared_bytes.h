// How much device memory Backend::prepare() needs for weights.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace lathe {

/// Of an array: the device's allocations are whole multiples of 256 bytes.
std::int64_t prepared_bytes(std::int64_t bytes);
/// Of `count` matrices like w. Their elements have an array, and so has each kind of scales; scales
/// in groups are rounded up to whole tiles.
std::int64_t prepared_bytes(const WeightView& w, std::int64_t count = 1);

}  // namespace lathe
