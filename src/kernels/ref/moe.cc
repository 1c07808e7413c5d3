#include "kernels/ref/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/ref/linear.h"
#include "kernels/ref/rowwise.h"

namespace lathe {
namespace {

using Doubles = std::vector<double>;
using Ids = std::vector<std::int32_t>;

// Ids of the n highest values, best first, ties to the lower id; NaN ranks below everything.
Ids highest(const Doubles& values, std::int32_t n) {
  const auto key = [&](std::int32_t i) {
    const double v = values[static_cast<std::size_t>(i)];
    return std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
  };
  Ids order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return key(a) > key(b); });
  order.resize(static_cast<std::size_t>(n));
  return order;
}

Doubles scores_of(const Router& router, const float* logits) {
  Doubles s(logits, logits + router.experts);
  if (router.scoring == RouterScoring::sigmoid) {
    for (double& v : s) v = 1 / (1 + std::exp(-v));
    return s;
  }
  if (router.scoring == RouterScoring::sqrt_softplus) {
    for (double& v : s) v = std::sqrt(v > 20 ? v + std::exp(-v) : std::log1p(std::exp(v)));
    return s;
  }
  const double most = *std::max_element(s.begin(), s.end());
  double sum = 0;
  for (double& v : s) sum += v = std::exp(v - most);
  for (double& v : s) v /= sum;
  return s;
}

// Excludes all but the best groups from the choice.
void keep_groups(const Router& router, Doubles& choice) {
  const auto size = static_cast<std::size_t>(router.experts / router.groups);
  Doubles best;
  for (std::size_t first = 0; first < choice.size(); first += size) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(first);
    const Doubles group(begin, begin + static_cast<std::ptrdiff_t>(size));
    double sum = 0;
    for (const std::int32_t i : highest(group, size < 2 ? 1 : router.group_best)) {
      sum += group[static_cast<std::size_t>(i)];
    }
    best.push_back(sum);
  }
  const Ids stay = highest(best, router.top_groups);
  for (std::size_t i = 0; i < choice.size(); ++i) {
    const auto group = static_cast<std::int32_t>(i / size);
    if (std::find(stay.begin(), stay.end(), group) == stay.end()) {
      choice[i] = -std::numeric_limits<double>::infinity();
    }
  }
}

// w x + the expert's bias, if there is one. All in double.
Doubles times(const WeightView& w, std::span<const float> biases, std::int64_t expert,
              const Doubles& x) {
  Doubles y(static_cast<std::size_t>(w.rows));
  for (std::int64_t n = 0; n < w.rows; ++n) {
    if (!biases.empty()) {
      y[static_cast<std::size_t>(n)] = biases[static_cast<std::size_t>(expert * w.rows + n)];
    }
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const std::int64_t column = w.columns == nullptr ? k : w.columns[k];
      y[static_cast<std::size_t>(n)] += x[static_cast<std::size_t>(column)] * weight_at(w, n, k);
    }
  }
  return y;
}

}  // namespace

void ref_route(const Router& router, const RowsView& logits, std::span<std::int32_t> ids,
               std::span<float> weights, std::span<const std::int32_t> tokens) {
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const Doubles scores = scores_of(router, reinterpret_cast<const float*>(logits.row(t)));
    Doubles choice = scores;
    for (std::size_t i = 0; i < router.bias.size(); ++i) choice[i] += router.bias[i];
    if (router.groups > 1) keep_groups(router, choice);
    Ids chosen = highest(choice, router.top_k);
    if (!router.token_experts.empty()) {
      const std::int64_t row = tokens[static_cast<std::size_t>(t)];
      std::copy_n(router.token_experts.begin() + row * router.top_k, router.top_k, chosen.begin());
    }
    double sum = 0;
    for (const std::int32_t id : chosen) sum += scores[static_cast<std::size_t>(id)];
    const double factor = router.scale / (router.normalize ? sum + 1e-20 : 1);
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      const std::size_t at = static_cast<std::size_t>(t) * chosen.size() + j;
      ids[at] = chosen[j];
      const auto id = static_cast<std::size_t>(chosen[j]);
      const double scale = router.expert_scale.empty() ? 1 : router.expert_scale[id];
      weights[at] = static_cast<float>(scores[id] * factor * scale);
    }
  }
}

void ref_expert_ffn(const ExpertLayer& op, std::span<const std::int32_t> ids,
                    std::span<const float> weights) {
  const std::int64_t top_k = op.choice.top_k;
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const auto* row = reinterpret_cast<const float*>(op.x.row(t));
    auto* to = reinterpret_cast<float*>(op.out.row(t));
    const Doubles in(row, row + op.x.cols);
    Doubles sum(static_cast<std::size_t>(op.out.cols));
    if (op.add) sum.assign(to, to + op.out.cols);
    for (std::int64_t j = 0; j < top_k; ++j) {
      const auto at = static_cast<std::size_t>(t * top_k + j);
      const ExpertStacks& e = *op.experts;
      const std::int64_t id = ids[at] - op.first;
      if (id < 0 || id >= e.gate.count()) continue;
      const bool turns = e.up.count() == 0;
      const double weight = weights[at], before = op.choice.weighs_inputs ? weight : 1;
      Doubles x = in;
      for (double& v : x) v *= before;
      const Doubles gate = times(e.gate.at(id), e.gate_bias, id, x);
      const Doubles up = turns ? Doubles() : times(e.up.at(id), {}, id, x);
      Doubles hidden(static_cast<std::size_t>(e.down.cols));
      for (std::size_t i = 0; i < hidden.size(); ++i) {
        hidden[i] = turns ? activated(op.activation, gate[2 * i], gate[2 * i + 1])
                          : activated(op.activation, gate[i], up[i]);
      }
      const Doubles down = times(e.down.at(id), e.down_bias, id, hidden);
      const double after = op.choice.weighs_inputs ? 1 : weight;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += after * down[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) to[i] = static_cast<float>(sum[i]);
  }
}

void ref_expert_layer(const ExpertLayer& op) {
  const std::int64_t experts = op.choice.experts;
  std::vector<float> logits(static_cast<std::size_t>(op.x.rows * experts));
  const MutableRowsView logit_rows{reinterpret_cast<std::byte*>(logits.data()), DType::f32,
                                   op.x.rows, experts, experts};
  const Product product{op.of_router(), op.router, logit_rows,
                        op.router_bias.empty() ? nullptr : op.router_bias.data()};
  ref_matmul({&product, 1});
  const auto chosen = static_cast<std::size_t>(op.x.rows * op.choice.top_k);
  std::vector<std::int32_t> ids(chosen);
  std::vector<float> weights(chosen);
  ref_route(op.choice, constant(logit_rows), ids, weights, op.tokens);
  ref_expert_ffn(op, ids, weights);
}

}  // namespace lathe
