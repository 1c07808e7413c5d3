#include "kernels/ref/hyper.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rows.h"

namespace lathe {
namespace {

using Doubles = std::vector<double>;

Doubles row_of(const RowsView& x, std::int64_t t) {
  const auto* at = reinterpret_cast<const float*>(x.row(t));
  return {at, at + x.cols};
}

void store(const Doubles& from, const MutableRowsView& out, std::int64_t t) {
  auto* to = reinterpret_cast<float*>(out.row(t));
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<float>(from[i]);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// `m` as kernels/hyper.h defines it.
Doubles scaled(const Doubles& x, Doubles product, double norm_eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + norm_eps);
  for (double& v : product) v *= factor;
  return product;
}

// Divides `count` elements first, first + step, ... by their sum + eps.
void normalise(Doubles& comb, std::size_t first, std::size_t step, std::size_t count, double eps) {
  double sum = eps;
  for (std::size_t i = 0; i < count; ++i) sum += comb[first + i * step];
  for (std::size_t i = 0; i < count; ++i) comb[first + i * step] /= sum;
}

void sinkhorn(Doubles& comb, std::size_t s, std::int32_t iterations, double eps) {
  for (std::size_t j = 0; j < s; ++j) {
    const auto row = comb.begin() + static_cast<std::ptrdiff_t>(j * s);
    const double most = *std::max_element(row, row + static_cast<std::ptrdiff_t>(s));
    double sum = 0;
    for (std::size_t k = 0; k < s; ++k) sum += comb[j * s + k] = std::exp(comb[j * s + k] - most);
    for (std::size_t k = 0; k < s; ++k) comb[j * s + k] = comb[j * s + k] / sum + eps;
  }
  for (std::int32_t i = 0; i < iterations; ++i) {
    for (std::size_t j = 0; i > 0 && j < s; ++j) normalise(comb, j * s, 1, s, eps);
    for (std::size_t k = 0; k < s; ++k) normalise(comb, k, s, s, eps);
  }
}

}  // namespace

void ref_hyper_mix(const HyperMix& op) {
  const auto s = static_cast<std::size_t>(op.streams);
  const auto n = static_cast<std::size_t>(op.out.cols);
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const Doubles x = row_of(op.x, t);
    const Doubles m = scaled(x, row_of(op.product, t), op.norm_eps);
    const auto at = [&](std::size_t i, std::size_t scale) {
      return double{op.scale[scale]} * m[i] + op.base[i];
    };
    Doubles out(n), mix(s), comb(s * s);
    for (std::size_t j = 0; j < s; ++j) {
      const double pre = sigmoid(at(j, 0)) + op.eps;
      for (std::size_t i = 0; i < n; ++i) out[i] += pre * x[j * n + i];
      mix[j] = double{op.post_scale} * sigmoid(at(s + j, 1)) + op.post_eps;
    }
    if (op.iterations > 0) {
      for (std::size_t i = 0; i < s * s; ++i) comb[i] = at(2 * s + i, 2);
      sinkhorn(comb, s, op.iterations, op.eps);
      mix.insert(mix.end(), comb.begin(), comb.end());
    }
    store(out, op.out, t);
    store(mix, op.mix, t);
  }
}

void ref_hyper_add(const HyperAdd& op) {
  const auto s = static_cast<std::size_t>(op.streams);
  const auto n = static_cast<std::size_t>(op.y.cols);
  const bool mixes = op.mix.cols > op.streams;
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const Doubles x = row_of(constant(op.x), t), y = row_of(op.y, t), mix = row_of(op.mix, t);
    Doubles out(s * n);
    for (std::size_t k = 0; k < s; ++k) {
      for (std::size_t i = 0; i < n; ++i) {
        double sum = mix[k] * y[i];
        for (std::size_t j = 0; mixes && j < s; ++j) sum += mix[s + j * s + k] * x[j * n + i];
        out[k * n + i] = mixes ? sum : sum + x[k * n + i];
      }
    }
    store(out, op.x, t);
  }
}

void ref_hyper_head(const HyperHead& op) {
  const auto s = static_cast<std::size_t>(op.streams);
  const auto n = static_cast<std::size_t>(op.out.cols);
  const bool mean = op.product.cols == 0;
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const Doubles x = row_of(op.x, t);
    const Doubles m = mean ? Doubles() : scaled(x, row_of(op.product, t), op.norm_eps);
    Doubles out(n);
    for (std::size_t j = 0; j < s; ++j) {
      const double weight = mean ? 1 / static_cast<double>(s)
                                 : sigmoid(double{op.scale[0]} * m[j] + op.base[j]) + op.eps;
      for (std::size_t i = 0; i < n; ++i) out[i] += weight * x[j * n + i];
    }
    store(out, op.out, t);
  }
}

}  // namespace lathe
