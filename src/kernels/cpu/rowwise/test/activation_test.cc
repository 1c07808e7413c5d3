// Gated activations on every SIMD target, against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "kernels/cpu/rowwise/rowwise.h"
#include "kernels/cpu/test/targets_test_util.h"
#include "kernels/ref/rowwise.h"

namespace lathe {
namespace {

using cpu_test::on_every_target;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

RowsView view(const std::vector<float>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  return {reinterpret_cast<const std::byte*>(x.data()), DType::f32, 1, n, n};
}
MutableRowsView out(std::vector<float>& x, std::int64_t cols) {
  return {reinterpret_cast<std::byte*>(x.data()), DType::f32, 1, cols,
          static_cast<std::int64_t>(x.size())};
}

// Interleaves gate and up.
std::vector<float> turns(const std::vector<float>& gate, const std::vector<float>& up) {
  std::vector<float> both;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    both.push_back(gate[i]);
    both.push_back(up[i]);
  }
  return both;
}

double sigmoid_argument(const Activation& how, double v) {
  if (how.kind == ActivationKind::silu) return v;
  if (how.kind == ActivationKind::clamped_swiglu) return how.alpha * std::min<double>(v, how.limit);
  if (how.kind == ActivationKind::clamped_silu) return std::min<double>(v, how.limit);
  return std::sqrt(8 / std::numbers::pi) * (v + 0.044715 * v * v * v);
}

constexpr ActivationKind kKinds[] = {ActivationKind::silu, ActivationKind::gelu_tanh,
                                     ActivationKind::clamped_swiglu, ActivationKind::clamped_silu};

TEST(GatedActivation, IsAsExactAsStated) {
  on_every_target([] {
    std::mt19937 rng(test_seed(1));
    for (const ActivationKind kind : kKinds) {
      const Activation how{.kind = kind};
      for (const std::size_t n : {1u, 7u, 16u, 33u, 4099u}) {
        std::vector<float> gate(n), up(n);
        std::uniform_real_distribution<float> narrow(-9, 9), wide(-12, 30);
        for (std::size_t i = 0; i < n; ++i) {
          gate[i] = i % 3 == 0 ? wide(rng) : narrow(rng) * (i % 5 == 0 ? 1e-4f : 1.0f);
          up[i] = narrow(rng);
        }
        std::vector<float> got(n), by_turns(n), in_place = turns(gate, up);
        const auto cols = static_cast<std::int64_t>(n);
        const std::vector<float> both = in_place;
        cpu_gated_activation({}, {how, view(gate), view(up), out(got, cols)});
        cpu_gated_activation({}, {how, view(both), {}, out(by_turns, cols)});
        cpu_gated_activation({}, {how, view(in_place), {}, out(in_place, cols)});
        in_place.resize(n);
        ASSERT_EQ(got, by_turns) << name(kind) << " " << n;
        ASSERT_EQ(got, in_place) << name(kind) << " " << n;
        for (std::size_t i = 0; i < n; ++i) {
          const double want = activated(how, gate[i], up[i]);
          const double bound = (4 + 2 * std::abs(sigmoid_argument(how, gate[i]))) * 0x1p-23;
          ASSERT_NEAR(got[i], want, bound * std::abs(want) + 1e-34)
              << name(kind) << " of " << gate[i] << ", " << up[i];
        }
      }
    }
  });
}

TEST(GatedActivation, AtTheEnds) {
  on_every_target([] {
    const std::vector<float> gate = {0, 100, -100, 1e4f, -1e4f, kInfinity, std::nanf(""), 1, 1, 9};
    const std::vector<float> up = {3, 1, 1, 1, 1, 1, 1, kInfinity, -kInfinity, std::nanf("")};
    std::vector<float> got(gate.size());
    const auto cols = static_cast<std::int64_t>(gate.size());
    for (const ActivationKind kind : kKinds) {
      const bool clamps =
          kind == ActivationKind::clamped_swiglu || kind == ActivationKind::clamped_silu;
      // The factors that `up` values of 1, 7 and -7 become.
      const float added = kind == ActivationKind::clamped_swiglu ? 1 : 0;
      cpu_gated_activation({}, {{.kind = kind}, view(gate), view(up), out(got, cols)});
      EXPECT_EQ(got[0], 0) << name(kind);
      EXPECT_NEAR(got[1], clamps ? 7 * (1 + added) : 100, 1e-2) << name(kind);
      EXPECT_NEAR(got[2], 0, 1e-30) << name(kind);
      EXPECT_NEAR(got[3], clamps ? 7 * (1 + added) : 1e4, 1e-2) << name(kind);
      EXPECT_NEAR(got[4], 0, 1e-30) << name(kind);
      EXPECT_FLOAT_EQ(got[5], clamps ? got[1] : kInfinity) << name(kind);
      EXPECT_TRUE(std::isnan(got[6])) << name(kind);
      const auto one = static_cast<float>(activated({.kind = kind}, 1, 1));
      EXPECT_FLOAT_EQ(got[7], clamps ? (7 + added) / (1 + added) * one : kInfinity) << name(kind);
      EXPECT_FLOAT_EQ(got[8], clamps ? (-7 + added) / (1 + added) * one : -kInfinity) << name(kind);
      EXPECT_TRUE(std::isnan(got[9])) << name(kind);
    }
  });
}

// Published values: torch.nn.functional.gelu(x, approximate="tanh") and silu at 1 and -2; gpt-oss's
// clamps at 7.
TEST(GatedActivation, OfKnownNumbers) {
  EXPECT_NEAR(activated({.kind = ActivationKind::silu}, 1, 1), 0.731058578630005, 1e-15);
  EXPECT_NEAR(activated({.kind = ActivationKind::gelu_tanh}, 1, 1), 0.841191990608276, 1e-14);
  EXPECT_NEAR(activated({.kind = ActivationKind::gelu_tanh}, -2, 1), -0.045402305912225, 1e-14);
  const Activation swiglu{.kind = ActivationKind::clamped_swiglu};
  EXPECT_NEAR(activated(swiglu, 1, 0), 1 / (1 + std::exp(-1.702)), 1e-7);
  EXPECT_EQ(activated(swiglu, 8, 9), activated(swiglu, 7, 7));
  EXPECT_EQ(activated(swiglu, -8, -9), activated(swiglu, -8, -7));
  const Activation clamped{.kind = ActivationKind::clamped_silu, .limit = 0.5f};
  EXPECT_NEAR(activated(clamped, 0.5, 0.25), 0.5 / (1 + std::exp(-0.5)) * 0.25, 1e-15);
  EXPECT_EQ(activated(clamped, 8, 9), activated(clamped, 0.5, 0.5));
  EXPECT_EQ(activated(clamped, -8, -9), activated(clamped, -8, -0.5));
}

}  // namespace
}  // namespace lathe
