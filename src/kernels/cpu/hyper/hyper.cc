// Plain loops: they are bound by memory, and compilers vectorise them well enough.
#include "kernels/cpu/hyper/hyper.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/common/for_rows.h"

namespace lathe {
namespace {

const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }
float* floats(std::byte* row) { return reinterpret_cast<float*>(row); }

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// 1 / sqrt(mean(x^2) + eps), with a fixed number of partial sums.
float inverse_norm(const float* x, std::int64_t n, float eps) {
  constexpr std::int64_t kParts = 16;
  std::array<float, kParts> sums{};
  std::int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (std::int64_t p = 0; p < kParts; ++p)
      sums[static_cast<std::size_t>(p)] += x[i + p] * x[i + p];
  }
  for (; i < n; ++i) sums[0] += x[i] * x[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return 1 / std::sqrt(sum / static_cast<float>(n) + eps);
}

// out = sum of weights[j] x[j] over the streams, of n elements each.
void weighted_sum(const float* x, const float* weights, std::int64_t streams, std::int64_t n,
                  float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = weights[0] * x[i];
  for (std::int64_t j = 1; j < streams; ++j) {
    for (std::int64_t i = 0; i < n; ++i) out[i] += weights[j] * x[j * n + i];
  }
}

void normalise(float* at, std::int64_t step, std::int64_t count, float eps) {
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += at[i * step];
  for (std::int64_t i = 0; i < count; ++i) at[i * step] /= sum + eps;
}

// comb [s, s]: logits in; out, a nearly doubly stochastic matrix (rows and columns sum to about 1).
void sinkhorn(float* comb, std::int64_t s, std::int32_t iterations, float eps) {
  for (std::int64_t j = 0; j < s; ++j) {
    float* row = comb + j * s;
    const float most = *std::max_element(row, row + s);
    float sum = 0;
    for (std::int64_t k = 0; k < s; ++k) sum += row[k] = std::exp(row[k] - most);
    for (std::int64_t k = 0; k < s; ++k) row[k] = row[k] / sum + eps;
  }
  for (std::int32_t i = 0; i < iterations; ++i) {
    for (std::int64_t j = 0; i > 0 && j < s; ++j) normalise(comb + j * s, 1, s, eps);
    for (std::int64_t k = 0; k < s; ++k) normalise(comb + k, s, s, eps);
  }
}

// x[t, k] += post[k] y[t]
void add_unmixed(const Execution& execution, const HyperAdd& op) {
  const std::int64_t n = op.y.cols;
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t t) {
    float* x = floats(op.x.row(t));
    const float* y = floats(op.y.row(t));
    const float* post = floats(op.mix.row(t));
    for (std::int64_t k = 0; k < op.streams; ++k) {
      for (std::int64_t i = 0; i < n; ++i) x[k * n + i] += post[k] * y[i];
    }
  });
}

}  // namespace

void cpu_hyper_mix(const Execution& execution, const HyperMix& op) {
  const std::int64_t s = op.streams, n = op.out.cols;
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t t) {
    const float* x = floats(op.x.row(t));
    const float* product = floats(op.product.row(t));
    const float factor = inverse_norm(x, op.x.cols, op.norm_eps);
    const auto at = [&](std::int64_t i, std::size_t scale) {
      return op.scale[scale] * (product[i] * factor) + op.base[static_cast<std::size_t>(i)];
    };
    std::array<float, kMaxStreams> pre;
    float* mix = floats(op.mix.row(t));
    for (std::int64_t j = 0; j < s; ++j) {
      pre[static_cast<std::size_t>(j)] = sigmoid(at(j, 0)) + op.eps;
      mix[j] = op.post_scale * sigmoid(at(s + j, 1)) + op.post_eps;
    }
    if (op.iterations > 0) {
      for (std::int64_t i = 0; i < s * s; ++i) mix[s + i] = at(2 * s + i, 2);
      sinkhorn(mix + s, s, op.iterations, op.eps);
    }
    weighted_sum(x, pre.data(), s, n, floats(op.out.row(t)));
  });
}

void cpu_hyper_add(const Execution& execution, const HyperAdd& op) {
  if (op.mix.cols == op.streams) return add_unmixed(execution, op);
  // Elements of each stream that are mixed at once, in place.
  constexpr std::int64_t kTile = 64;
  const std::int64_t s = op.streams, n = op.y.cols;
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t t) {
    float* x = floats(op.x.row(t));
    const float* y = floats(op.y.row(t));
    const float* post = floats(op.mix.row(t));
    const float* comb = post + s;
    std::array<float, kMaxStreams * kTile> before;
    for (std::int64_t first = 0; first < n; first += kTile) {
      const std::int64_t count = std::min(kTile, n - first);
      for (std::int64_t j = 0; j < s; ++j) {
        std::copy_n(x + j * n + first, count, before.data() + j * kTile);
      }
      for (std::int64_t k = 0; k < s; ++k) {
        float* to = x + k * n + first;
        for (std::int64_t i = 0; i < count; ++i) to[i] = post[k] * y[first + i];
        for (std::int64_t j = 0; j < s; ++j) {
          const float* from = before.data() + j * kTile;
          for (std::int64_t i = 0; i < count; ++i) to[i] += comb[j * s + k] * from[i];
        }
      }
    }
  });
}

void cpu_hyper_head(const Execution& execution, const HyperHead& op) {
  for_rows(execution, op.x.rows, op.x.cols, [&](std::int64_t t) {
    const float* x = floats(op.x.row(t));
    const float* product = floats(op.product.row(t));
    std::array<float, kMaxStreams> weights;
    weights.fill(1 / static_cast<float>(op.streams));
    const bool mean = op.product.cols == 0;
    const float factor = mean ? 0 : inverse_norm(x, op.x.cols, op.norm_eps);
    for (std::int64_t j = 0; !mean && j < op.streams; ++j) {
      const auto i = static_cast<std::size_t>(j);
      weights[i] = sigmoid(op.scale[0] * (product[j] * factor) + op.base[i]) + op.eps;
    }
    weighted_sum(x, weights.data(), op.streams, op.out.cols, floats(op.out.row(t)));
  });
}

}  // namespace lathe
