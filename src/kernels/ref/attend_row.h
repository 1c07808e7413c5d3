// Attention of one query vector over a list of keys, in double. The oracle's only softmax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lathe {

/// Rows in a buffer: element e of row i is data[first + i * stride + e]. `first` is an index, not
/// added to the pointer, because the buffer may be empty (no keys) and its pointer null.
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
/// out.size() elements. Without keys, or if all scores are -inf: out is 0, the LSE -inf. NaN in the
/// input gives NaN.
double attend_row(std::span<const double> q, DoubleRows keys, DoubleRows values, std::int64_t count,
                  double scale, std::span<double> out);

}  // namespace lathe
