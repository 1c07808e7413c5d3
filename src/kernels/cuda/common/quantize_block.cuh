// e4m3 codes of 128 neighbours of a row with one scale.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// The largest magnitude of kLanes neighbouring lanes' values, in all of them; NaN if there is one.
template <int kLanes>
__device__ inline float largest_of(const float (&v)[4]) {
  float most = 0;
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    most = max_or_nan(most, bits_to_float(float_to_bits(v[i]) & 0x7fffffffu));
  }
  for (int d = kLanes / 2; d > 0; d /= 2) most = max_or_nan(most, shuffle_xor(most, d));
  return most;
}

/// The scale of neighbours with the largest magnitude `most`: most / 448 (1 if all are 0), or that
/// rounded up to a power of two. Rounded as on the CPU.
__device__ inline float code_scale(float most, bool power_of_two) {
  const float scale = most == 0 ? 1.f : most / 448.f;
  return power_of_two ? pow2_ceil(scale) : scale;
}

/// e4m3(v / scale), rounded as on the CPU.
__device__ inline std::uint32_t codes_of(const float (&v)[4], float scale) {
  return convert_e4m3x4(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale);
}

struct QuantizedFour {
  std::uint32_t codes;
  float scale;
};

/// For a warp, a lane four of the neighbours. A NaN anywhere makes the scale NaN.
__device__ inline QuantizedFour quantize_block(const float (&v)[4], bool power_of_two) {
  const float scale = code_scale(largest_of<32>(v), power_of_two);
  return {codes_of(v, scale), scale};
}

}  // namespace lathe::cuda
