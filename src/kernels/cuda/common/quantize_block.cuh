// e4m3 codes of 128 neighbours of a row with one scale.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

struct QuantizedFour {
  std::uint32_t codes;
  float scale;
};

/// For a warp, a lane four of the neighbours: scale = amax / 448 (1 if all are 0), or that rounded
/// up to a power of two; code = e4m3(v / scale). Both are rounded as on the CPU. A NaN anywhere
/// makes the scale NaN.
__device__ inline QuantizedFour quantize_block(const float (&v)[4], bool power_of_two) {
  float most = 0;
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    most = max_or_nan(most, bits_to_float(float_to_bits(v[i]) & 0x7fffffffu));
  }
  for (int d = 16; d > 0; d /= 2) most = max_or_nan(most, shuffle_xor(most, d));
  float scale = most == 0 ? 1.f : most / 448.f;
  if (power_of_two) scale = pow2_ceil(scale);
  return {convert_e4m3x4(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale), scale};
}

}  // namespace lathe::cuda
