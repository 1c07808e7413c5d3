// Hyper-connections on the CPU against double precision, and both against the definition.
#include "ops/hyper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "ops/test/test_util.h"

namespace lathe {
namespace {

using ops_test::Context;
using ops_test::error_of;
using ops_test::Rows;

struct Mixed {
  Rows out, mix;
};

struct HyperCase {
  std::int32_t streams, iterations;
  std::int64_t rows, n;
  Rows x, product;
  std::vector<float> base, scale;

  template <class Rng>
  HyperCase(Rng& rng, std::int32_t s, std::int32_t its, std::int64_t t, std::int64_t width,
            float spread = 1)
      : streams(s),
        iterations(its),
        rows(t),
        n(width),
        x(t, s * width),
        product(t, its > 0 ? 2 * s + s * s : 2 * s),
        scale({1.1f, 0.8f}) {
    if (its > 0) scale.push_back(0.9f);
    x.randomize(rng);
    product.randomize(rng);
    for (float& v : product.data) v *= spread;
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < product.cols; ++i) base.push_back(normal(rng));
  }
  Mixed run(Device device, int threads = 1) {
    Context c(threads, device);
    Mixed m{Rows(rows, n), Rows(rows, product.cols - streams)};
    hyper_mix(c.ops, {.x = x.view(),
                      .product = product.view(),
                      .base = base,
                      .scale = scale,
                      .streams = streams,
                      .iterations = iterations,
                      .eps = 1e-6f,
                      .post_scale = 1.7f,
                      .post_eps = 0.1f,
                      .norm_eps = 1e-6f,
                      .out = m.out.out(),
                      .mix = m.mix.out()});
    return m;
  }
};

TEST(HyperMix, OnTheCpuAsInDouble) {
  std::mt19937 rng(test_seed(20261125));
  for (const std::int32_t iterations : {0, 1, 2, 20}) {
    for (const std::int64_t n : {1, 5, 16, 33, 260}) {
      for (const float spread : {1.0f, 60.0f}) {
        for (const std::int32_t streams : {1, 2, 4}) {
          HyperCase c(rng, streams, iterations, 7, n, spread);
          const Mixed want = c.run(Device::ref), got = c.run(Device::cpu, 2);
          EXPECT_LT(error_of(got.out, want.out), 1e-6 * (1 + spread)) << n;
          EXPECT_LT(error_of(got.mix, want.mix), 1e-6 * (1 + spread)) << n;
        }
      }
    }
  }
}

// Columns are normalised last, so they sum to 1; after many iterations rows nearly do, too.
TEST(HyperMix, CombIsDoublyStochastic) {
  std::mt19937 rng(7);
  for (const Device device : {Device::ref, Device::cpu}) {
    HyperCase c(rng, 4, 20, 5, 8);
    const Mixed m = c.run(device);
    for (std::int64_t t = 0; t < 5; ++t) {
      const float* comb = m.mix.row(t) + 4;
      for (int k = 0; k < 4; ++k) {
        float column = 0, row = 0;
        for (int j = 0; j < 4; ++j) column += comb[4 * j + k], row += comb[4 * k + j];
        EXPECT_NEAR(column, 1, 1e-5);
        EXPECT_NEAR(row, 1, 1e-2);
      }
    }
  }
}

// Worked out by hand for two streams of one element: m = product / sqrt((9 + 16) / 2), scales
// are 1.
TEST(HyperMix, OfKnownNumbers) {
  for (const Device device : {Device::ref, Device::cpu}) {
    Context c(1, device);
    Rows x(1, 2), product(1, 8, 0), out(1, 1), mix(1, 6);
    x.row(0)[0] = 3, x.row(0)[1] = 4;
    const float norm = std::sqrt(12.5f);
    product.row(0)[0] = norm;                   // pre[0] = sigmoid(1)
    product.row(0)[3] = -norm;                  // post[1] = 2 sigmoid(-1)
    product.row(0)[4] = norm * std::log(3.0f);  // comb[0] = 3 : 1 before columns are divided
    const std::vector<float> base(8, 0.0f), scale(3, 1.0f);
    hyper_mix(c.ops, {.x = x.view(),
                      .product = product.view(),
                      .base = base,
                      .scale = scale,
                      .streams = 2,
                      .iterations = 1,
                      .eps = 0,
                      .norm_eps = 0,
                      .out = out.out(),
                      .mix = mix.out()});
    const float sigmoid1 = 1 / (1 + std::exp(-1.0f));
    EXPECT_NEAR(out.row(0)[0], 3 * sigmoid1 + 4 * 0.5f, 1e-5f);
    EXPECT_NEAR(mix.row(0)[0], 1, 1e-6f);
    EXPECT_NEAR(mix.row(0)[1], 2 * (1 - sigmoid1), 1e-6f);
    // Rows (.75, .25) and (.5, .5): columns of 1.25 and .75.
    EXPECT_NEAR(mix.row(0)[2], 0.6f, 1e-6f);
    EXPECT_NEAR(mix.row(0)[3], 1 / 3.0f, 1e-6f);
    EXPECT_NEAR(mix.row(0)[4], 0.4f, 1e-6f);
    EXPECT_NEAR(mix.row(0)[5], 2 / 3.0f, 1e-6f);

    Rows y(1, 1, 10);
    hyper_add(c.ops, {y.view(), mix.view(), 2, x.out()});
    EXPECT_NEAR(x.row(0)[0], 10 * 1 + 0.6f * 3 + 0.4f * 4, 1e-5f);
    EXPECT_NEAR(x.row(0)[1], 10 * 2 * (1 - sigmoid1) + 3 / 3.0f + 4 * 2 / 3.0f, 1e-5f);
  }
}

// Worked out by hand for two streams of one element, which parts do not mix.
TEST(HyperMix, OfKnownNumbersWithoutComb) {
  for (const Device device : {Device::ref, Device::cpu}) {
    Context c(1, device);
    Rows x(1, 2), product(1, 4, 0), out(1, 1), mix(1, 2), y(1, 1, 10);
    x.row(0)[0] = 3, x.row(0)[1] = 4;
    product.row(0)[3] = std::sqrt(12.5f);
    const std::vector<float> base(4, 0.0f), scale(2, 1.0f);
    hyper_mix(c.ops, {.x = x.view(),
                      .product = product.view(),
                      .base = base,
                      .scale = scale,
                      .streams = 2,
                      .eps = 0.25f,
                      .post_scale = 3,
                      .post_eps = 0.5f,
                      .norm_eps = 0,
                      .out = out.out(),
                      .mix = mix.out()});
    const float sigmoid1 = 1 / (1 + std::exp(-1.0f));
    EXPECT_NEAR(out.row(0)[0], 0.75f * (3 + 4), 1e-5f);
    EXPECT_NEAR(mix.row(0)[0], 3 * 0.5f + 0.5f, 1e-6f);
    EXPECT_NEAR(mix.row(0)[1], 3 * sigmoid1 + 0.5f, 1e-6f);
    hyper_add(c.ops, {y.view(), mix.view(), 2, x.out()});
    EXPECT_NEAR(x.row(0)[0], 3 + 20, 1e-5f);
    EXPECT_NEAR(x.row(0)[1], 4 + 10 * (3 * sigmoid1 + 0.5f), 1e-4f);
    hyper_head(c.ops, {.x = x.view(), .streams = 2, .out = out.out()});
    EXPECT_NEAR(out.row(0)[0], (x.row(0)[0] + x.row(0)[1]) / 2, 1e-5f);
  }
}

TEST(HyperAdd, OnTheCpuAsInDouble) {
  std::mt19937 rng(3);
  for (const std::int64_t n : {1, 63, 64, 65, 300}) {
    for (const std::int64_t columns : {20, 4}) {
      Rows x(6, 4 * n), y(6, n), mix(6, columns);
      x.randomize(rng), y.randomize(rng), mix.randomize(rng);
      Rows want = x.copy(0, 6), got = x.copy(0, 6);
      Context ref(1, Device::ref), cpu(2);
      hyper_add(ref.ops, {y.view(), mix.view(), 4, want.out()});
      hyper_add(cpu.ops, {y.view(), mix.view(), 4, got.out()});
      EXPECT_LT(error_of(got, want), 1e-6) << n << " " << columns;
    }
  }
}

TEST(HyperHead, OnTheCpuAsInDouble) {
  std::mt19937 rng(5);
  for (const std::int64_t n : {1, 17, 256}) {
    Rows x(6, 4 * n), product(6, 4), want(6, n), got(6, n);
    x.randomize(rng), product.randomize(rng);
    const std::vector<float> base = {0.3f, -1, 0.5f, 2}, scale = {1.2f};
    for (const Device device : {Device::ref, Device::cpu}) {
      Context c(1, device);
      hyper_head(c.ops, {.x = x.view(),
                         .product = product.view(),
                         .base = base,
                         .scale = scale,
                         .streams = 4,
                         .eps = 1e-6f,
                         .norm_eps = 1e-6f,
                         .out = device == Device::ref ? want.out() : got.out()});
    }
    EXPECT_LT(error_of(got, want), 1e-6) << n;
  }
}

TEST(HyperHead, IsTheMeanWithoutWeights) {
  std::mt19937 rng(6);
  Rows x(6, 4 * 33), want(6, 33), got(6, 33);
  x.randomize(rng);
  for (const Device device : {Device::ref, Device::cpu}) {
    Context c(1, device);
    hyper_head(
        c.ops,
        {.x = x.view(), .streams = 4, .out = device == Device::ref ? want.out() : got.out()});
  }
  EXPECT_LT(error_of(got, want), 1e-6);
  double sum = 0;
  for (int s = 0; s < 4; ++s) sum += double{x.row(2)[33 * s + 7]};
  EXPECT_NEAR(want.row(2)[7], sum / 4, 1e-6);
}

}  // namespace
}  // namespace lathe
