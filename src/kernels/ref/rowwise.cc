#include "kernels/ref/rowwise.h"

#include <cmath>

#include "kernels/ref/linear.h"

namespace lathe {
namespace {

const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }
float* floats(std::byte* row) { return reinterpret_cast<float*>(row); }

}  // namespace

void ref_rms_norm(const RowsView& x, std::span<const float> weight, float eps,
                  const MutableRowsView& out, std::int64_t heads) {
  const std::int64_t n = x.cols / heads;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* from = floats(x.row(t)) + h * n;
      float* to = floats(out.row(t)) + h * n;
      double squares = 0;
      for (std::int64_t i = 0; i < n; ++i) squares += double{from[i]} * from[i];
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = static_cast<float>(from[i] * factor * weight[static_cast<std::size_t>(i)]);
      }
    }
  }
}

void ref_layer_norm(const RowsView& x, std::span<const float> weight, std::span<const float> bias,
                    float eps, const MutableRowsView& out) {
  const auto n = static_cast<double>(x.cols);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const float* from = floats(x.row(t));
    float* to = floats(out.row(t));
    double sum = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) sum += from[i];
    const double mean = sum / n;
    double squares = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const double factor = 1 / std::sqrt(squares / n + eps);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const auto at = static_cast<std::size_t>(i);
      to[i] = static_cast<float>((from[i] - mean) * factor * weight[at] + bias[at]);
    }
  }
}

void ref_silu_mul(const RowsView& gate, const RowsView& up, const MutableRowsView& out) {
  for (std::int64_t t = 0; t < gate.rows; ++t) {
    for (std::int64_t i = 0; i < gate.cols; ++i) {
      const double v = floats(gate.row(t))[i];
      floats(out.row(t))[i] = static_cast<float>(v / (1 + std::exp(-v)) * floats(up.row(t))[i]);
    }
  }
}

void ref_add_rows(const RowsView& x, const MutableRowsView& out) {
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t i = 0; i < x.cols; ++i) floats(out.row(t))[i] += floats(x.row(t))[i];
  }
}

void ref_embed(const WeightView& table, std::span<const std::int32_t> tokens,
               const MutableRowsView& out) {
  for (std::int64_t t = 0; t < std::ssize(tokens); ++t) {
    for (std::int64_t i = 0; i < table.cols; ++i) {
      floats(out.row(t))[i] = weight_at(table, tokens[static_cast<std::size_t>(t)], i);
    }
  }
}

}  // namespace lathe
