#include "kernels/ref/rowwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/ref/linear.h"

namespace lathe {
namespace {

const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }
float* floats(std::byte* row) { return reinterpret_cast<float*>(row); }

}  // namespace

void ref_rms_norm(const RmsNorm& op) {
  const std::int64_t n = op.x.cols / op.heads;
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      const float* from = floats(op.x.row(t)) + h * n;
      float* to = floats(op.out.row(t)) + h * n;
      double squares = 0;
      for (std::int64_t i = 0; i < n; ++i) squares += double{from[i]} * from[i];
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + op.eps);
      for (std::int64_t i = 0; i < n; ++i) {
        const double weight = op.weight.empty() ? 1 : op.weight[static_cast<std::size_t>(i)];
        const double normed = from[i] * factor * weight;
        to[i] = static_cast<float>(op.add ? to[i] + normed : normed);
      }
    }
  }
}

void ref_layer_norm(const LayerNorm& op) {
  const RowsView& x = op.x;
  const auto n = static_cast<double>(x.cols);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const float* from = floats(x.row(t));
    float* to = floats(op.out.row(t));
    double sum = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) sum += from[i];
    const double mean = sum / n;
    double squares = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const double factor = 1 / std::sqrt(squares / n + op.eps);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const auto at = static_cast<std::size_t>(i);
      to[i] = static_cast<float>((from[i] - mean) * factor * op.weight[at] + op.bias[at]);
    }
  }
}

double activated(const Activation& how, double v, double u) {
  switch (how.kind) {
    case ActivationKind::silu:
      return v / (1 + std::exp(-v)) * u;
    case ActivationKind::gelu_tanh:
      // (1 + tanh(x)) / 2 = 1 / (1 + e^-2x), which has no cancellation.
      return v / (1 + std::exp(-std::sqrt(8 / std::numbers::pi) * (v + 0.044715 * v * v * v))) * u;
    case ActivationKind::clamped_swiglu:
      // Not std::min: NaN must stay NaN.
      v = v > how.limit ? how.limit : v;
      u = u > how.limit ? how.limit : u < -how.limit ? -how.limit : u;
      return v / (1 + std::exp(-double{how.alpha} * v)) * (u + 1);
    case ActivationKind::clamped_silu:
      v = v > how.limit ? how.limit : v;
      u = u > how.limit ? how.limit : u < -how.limit ? -how.limit : u;
      return v / (1 + std::exp(-v)) * u;
  }
  return 0;
}

void ref_gated_activation(const GatedActivation& op) {
  const bool turns = op.up.cols == 0;
  for (std::int64_t t = 0; t < op.out.rows; ++t) {
    const float* gate = floats(op.gate.row(t));
    const float* up = turns ? gate + 1 : floats(op.up.row(t));
    const std::int64_t step = turns ? 2 : 1;
    for (std::int64_t i = 0; i < op.out.cols; ++i) {
      const double v = activated(op.activation, gate[step * i], up[step * i]);
      floats(op.out.row(t))[i] = static_cast<float>(v);
    }
  }
}

void ref_gate_rows(const GateRows& op) {
  const std::int64_t n = op.x.cols / op.heads;
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    for (std::int64_t i = 0; i < op.x.cols; ++i) {
      const std::int64_t at = i / n * op.gate_head + (op.gate.cols == 1 ? 0 : i % n);
      const double factor = 1 / (1 + std::exp(-double{floats(op.gate.row(t))[at]}));
      float& v = floats(op.x.row(t))[i];
      v = static_cast<float>(v * factor);
    }
  }
}

void ref_add_rows(const RowsView& x, const MutableRowsView& out) {
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t i = 0; i < x.cols; ++i) floats(out.row(t))[i] += floats(x.row(t))[i];
  }
}

void ref_scale_rows(const ScaleRows& op) {
  const double factor = double{op.times} * (op.factor.empty() ? 1 : op.factor[0]);
  for (std::int64_t t = 0; t < op.rows.rows; ++t) {
    float* row = floats(op.rows.row(t));
    for (std::int64_t i = 0; i < op.rows.cols; ++i) {
      const double v = row[i] * factor;
      row[i] = static_cast<float>(op.limit > 0 ? op.limit * std::tanh(v / op.limit) : v);
    }
  }
}

void ref_embed(const Embed& op) {
  for (std::int64_t t = 0; t < std::ssize(op.tokens); ++t) {
    const std::int64_t token = op.tokens[static_cast<std::size_t>(t)];
    LATHE_CHECK(token >= 0 && token < op.vocab, "tokens lie in the table");
    const std::int64_t at = token - op.first;
    const bool here = at >= 0 && at < op.table.rows;
    for (std::int64_t i = 0; i < op.table.cols; ++i) {
      floats(op.out.row(t))[i] = here ? weight_at(op.table, at, i) * op.scale : 0;
    }
  }
}

void ref_gather_rows(const RowsView& x, std::span<const std::int32_t> rows,
                     const MutableRowsView& out) {
  for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
    std::memcpy(out.row(i), x.row(rows[static_cast<std::size_t>(i)]),
                static_cast<std::size_t>(bytes_of(x.dtype, x.cols)));
  }
}

void ref_cast_rows(const RowsView& x, const MutableRowsView& out) {
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const float v = floats(x.row(t))[i];
      if (out.dtype == DType::f32) {
        floats(out.row(t))[i] = v;
      } else if (out.dtype == DType::bf16) {
        reinterpret_cast<bf16*>(out.row(t))[i] = to_bf16(v);
      } else {
        reinterpret_cast<e4m3*>(out.row(t))[i] = to_e4m3(v);
      }
    }
  }
}

void ref_find_non_finite(const FindNonFinite& op) {
  for (std::int64_t i = 0; i < op.x.rows; ++i) {
    const auto row = static_cast<std::size_t>(i);
    std::int32_t& first = op.first[op.rows.empty() ? row : static_cast<std::size_t>(op.rows[row])];
    if (first != kFinite) continue;
    const float* v = floats(op.x.row(i));
    const bool finite = std::all_of(v, v + op.x.cols, [](float e) { return std::isfinite(e); });
    if (!finite) first = op.layer;
  }
}

}  // namespace lathe
