// The Hadamard transform of index keys and queries.
#pragma once

#include <cmath>
#include <cstdint>

namespace lathe {

/// Replaces x [n] by H x / sqrt(n), where H is the Hadamard matrix in Sylvester's order. n must be
/// a power of two.
inline void hadamard(float* x, std::int64_t n) {
  for (std::int64_t half = 1; half < n; half *= 2) {
    for (std::int64_t i = 0; i < n; i += 2 * half) {
      for (std::int64_t j = i; j < i + half; ++j) {
        const float a = x[j];
        const float b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
    }
  }
  const float norm = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  for (std::int64_t i = 0; i < n; ++i) x[i] *= norm;
}

}  // namespace lathe
