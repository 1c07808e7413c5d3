// Plain types of the tiled CPU attention, the same for every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lathe {

/// Keys of a tile: four vectors of AVX-512. Tiles start at multiples of it, counted from a
/// request's key 0, whatever rows or chunk ask: the order of accumulation hangs on nothing else.
inline constexpr std::size_t kTile = 64;

/// A softmax under way, in powers of two: sum = sum_i 2^(s_i - max). Empty: max = -inf, sum = 0.
struct SoftState {
  float max = -__builtin_inff();
  float sum = 0;
};

/// Keys of a tile that a row sees: begin .. end-1.
struct RowRange {
  std::int32_t begin;
  std::int32_t end;
};

}  // namespace lathe
