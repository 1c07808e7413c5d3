// The 128-byte swizzle of wgmma and TMA.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile.
__device__ inline std::uint32_t swizzled(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

}  // namespace lathe::cuda
