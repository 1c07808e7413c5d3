// Random weights (--load-format dummy), with the same bits on every device. Four consecutive
// elements come from the hash of their index, so any thread can make any part.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/float_formats.h"

namespace lathe {

/// Matrices of one shape. Elements are uniform with variance 1 / cols, as in freshly initialised
/// layers. All codes share one scale.
struct RandomWeights {
  DType dtype = DType::f32;  // f32, bf16, e4m3, e2m1 or u4
  std::int64_t rows = 0, cols = 0;
  std::span<const std::uint64_t> seeds;  // [count]
  // Parts of larger matrices, with the bits that their elements have there: the index of each
  // part's first element, [count], and the columns of a whole matrix. cols, whole_cols and indices
  // are multiples of 4. Empty: whole matrices.
  std::span<const std::int64_t> first = {};
  std::int64_t whole_cols = 0;
  std::int32_t group = 0;  // columns of a group: of u4, and of NVFP4; 0: e2m1 is MXFP4
  bool zeros = false;      // u4: groups have zeros, all kU4Zero

  std::int64_t first_of(std::int64_t i) const {
    return first.empty() ? 0 : first[static_cast<std::size_t>(i)];
  }
  /// Columns of the whole matrices, by which elements are scaled.
  std::int64_t all_cols() const { return first.empty() ? cols : whole_cols; }
};

/// Largest magnitude of a weight; below, of the codes that the scale maps to it.
inline float random_reach(std::int64_t cols) { return std::sqrt(3.0f / static_cast<float>(cols)); }
inline constexpr float kE4m3Reach = 384;  // of 448
inline constexpr float kE2m1Reach = 6;
inline float random_e4m3_scale(std::int64_t cols) { return random_reach(cols) / kE4m3Reach; }
inline bf16 random_u4_scale(std::int64_t cols) { return to_bf16(random_reach(cols) / 8); }
/// NVFP4: scales of groups are 1, and the tensor has this factor.
inline float random_nvfp4_factor(std::int64_t cols) { return random_reach(cols) / kE2m1Reach; }
inline ue8m0 random_e2m1_scale(std::int64_t cols) {
  return to_ue8m0_ceil(random_reach(cols) / kE2m1Reach);
}

/// splitmix64's output for a counter.
LATHE_HD constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Bits of elements i to i + 3, 16 each, element i in the lowest; i is a multiple of 4.
LATHE_HD constexpr std::uint64_t random_weight_bits(std::uint64_t seed, std::int64_t i) {
  return mixed_bits(seed + static_cast<std::uint64_t>(i));
}

/// Maps the lowest 16 bits to a uniform value between -reach and reach.
LATHE_HD constexpr float random_value(std::uint64_t bits, float reach) {
  return static_cast<float>(static_cast<std::int16_t>(bits & 0xffff)) * (reach * 0x1p-15f);
}
/// e4m3 and e2m1 codes depend on 12 of the 16 bits, so that the host can look them up in a table.
LATHE_HD constexpr std::uint64_t code_bits(std::uint64_t bits) { return bits & 0xfff0; }
LATHE_HD constexpr e4m3 random_e4m3(std::uint64_t bits) {
  return to_e4m3(random_value(code_bits(bits), kE4m3Reach));
}
/// A code from the highest 4 of the 16 bits.
LATHE_HD constexpr std::uint8_t random_u4(std::uint64_t bits) {
  return static_cast<std::uint8_t>((bits >> 12 & 0xf) ^ 8);
}
LATHE_HD constexpr e2m1 random_e2m1(std::uint64_t bits) {
  return to_e2m1(random_value(code_bits(bits), kE2m1Reach));
}

}  // namespace lathe
