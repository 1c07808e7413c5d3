// Attention of one query vector over a list of keys, in double: the only softmax of the oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lathe {

/// Rows inside a buffer: element e of row i is data[first + i * stride + e]. An index, not a
/// shifted pointer, since the buffer of no keys has no address to shift.
struct DoubleRows {
  std::span<const double> data;
  std::int64_t first = 0;
  std::int64_t stride = 0;

  std::span<const double> row(std::int64_t i, std::size_t width) const {
    return data.subspan(static_cast<std::size_t>(first + i * stride), width);
  }
};

/// With s_i = scale * q . keys[i], writes out = sum_i e^(s_i) values[i] / sum_i e^(s_i) and returns
/// the LSE, ln sum_i e^(s_i). keys: [count] rows of q.size() elements; values: [count] rows of
/// out.size() elements. No key (or only scores of -inf): out 0, LSE -inf. NaN passes through.
double attend_row(std::span<const double> q, DoubleRows keys, DoubleRows values, std::int64_t count,
                  double scale, std::span<double> out);

}  // namespace lathe
