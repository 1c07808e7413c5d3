#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_scale.h"
#include "ops/test/test_util.h"

namespace lathe {
namespace {

using ops_test::Context;
using ops_test::Rows;
using ops_test::Weight;

constexpr std::int64_t kSizes[] = {1, 3, 15, 16, 17, 63, 64, 65, 127, 577, 1024};
constexpr double kUnit = 0x1p-24;  // half an ulp of 1 in f32

// |got - want| <= relative * max(|want|, floor), for every element.
void expect_near(const Rows& got, const Rows& want, double relative, double floor = 0) {
  for (std::int64_t t = 0; t < got.rows; ++t) {
    for (std::int64_t i = 0; i < got.cols; ++i) {
      const double w = want.row(t)[i];
      ASSERT_LE(std::abs(got.row(t)[i] - w), relative * std::max(std::abs(w), floor))
          << "row " << t << " of " << got.rows << ", element " << i << " of " << got.cols;
    }
    for (std::int64_t i = got.cols; i < got.stride; ++i) ASSERT_TRUE(std::isnan(got.row(t)[i]));
  }
}

TEST(RmsNorm, AgreesWithRef) {
  std::mt19937 rng(test_seed(1));
  for (const std::int64_t n : kSizes) {
    for (const std::int64_t heads : {1, 4}) {
      for (const std::int64_t rows : {0, 1, 5, 100}) {
        Rows x(rows, n * heads);
        x.randomize(rng);
        Rows weight(1, n, 0, 0);
        weight.randomize(rng);
        Rows got(rows, n * heads);
        Rows want = got;
        const std::span<const float> w(weight.row(0), static_cast<std::size_t>(n));
        Context cpu(2), ref(1, Device::ref);
        rms_norm(cpu.ops, x.view(), w, 1e-6f, got.out(), heads);
        rms_norm(ref.ops, x.view(), w, 1e-6f, want.out(), heads);
        // All squares are positive, so a sum's relative error is at most its number of roundings;
        // the root halves it.
        expect_near(got, want, kUnit * (static_cast<double>(n) / 2 + 8));
        Rows in_place = x;
        rms_norm(cpu.ops, in_place.view(), w, 1e-6f, in_place.out(), heads);
        EXPECT_TRUE(in_place.same_bits(got));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(RmsNorm, WithoutWeightsAsWithOnes) {
  std::mt19937 rng(test_seed(2));
  const std::vector<float> ones(40, 1.0f);
  for (const Device device : {Device::ref, Device::cpu}) {
    Context c(1, device);
    Rows x(3, 120);
    x.randomize(rng);
    Rows got(3, 120), want(3, 120);
    rms_norm(c.ops, x.view(), {}, 1e-6f, got.out(), 3);
    rms_norm(c.ops, x.view(), ones, 1e-6f, want.out(), 3);
    EXPECT_TRUE(got.same_bits(want));
  }
}

TEST(RmsNorm, OfKnownNumbers) {
  const float weight[] = {1, 2};
  for (const Device device : {Device::ref, Device::cpu}) {
    Rows x(1, 2);
    x.row(0)[0] = 3;
    x.row(0)[1] = 4;
    Context c(1, device);
    rms_norm(c.ops, x.view(), weight, 12.5f, x.out());  // mean of squares 12.5, so the root is 5
    EXPECT_FLOAT_EQ(x.row(0)[0], 0.6f);
    EXPECT_FLOAT_EQ(x.row(0)[1], 1.6f);
  }
}

TEST(LayerNorm, AgreesWithRef) {
  std::mt19937 rng(test_seed(2));
  for (const std::int64_t n : kSizes) {
    for (const std::int64_t rows : {0, 1, 5, 100}) {
      Rows x(rows, n);
      x.randomize(rng);
      for (std::int64_t t = 0; t < rows; ++t) {
        for (std::int64_t i = 0; i < n; ++i) x.row(t)[i] += 3;
      }
      Rows weight(1, n, 0, 0), bias(1, n, 0, 0);
      weight.randomize(rng);
      bias.randomize(rng);
      Rows got(rows, n);
      Rows want = got;
      const auto size = static_cast<std::size_t>(n);
      Context cpu(2), ref(1, Device::ref);
      const std::span<const float> w(weight.row(0), size), b(bias.row(0), size);
      layer_norm(cpu.ops, x.view(), w, b, 0.1f, got.out());
      layer_norm(ref.ops, x.view(), w, b, 0.1f, want.out());
      // Elements are of magnitude 1, the mean is 3, its error at most 3 n u, and
      // 1 / sqrt(var) <= 3.2.
      expect_near(got, want, kUnit * (32 * static_cast<double>(n) + 128), 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LayerNorm, OfKnownNumbers) {
  const float weight[] = {1, 1, 2, 2};
  const float bias[] = {0, 1, 0, 1};
  for (const Device device : {Device::ref, Device::cpu}) {
    Rows x(1, 4);
    for (int i = 0; i < 4; ++i) x.row(0)[i] = i < 2 ? 1 : 7;  // mean 4, variance 9
    Context c(1, device);
    layer_norm(c.ops, x.view(), weight, bias, 0, x.out());
    EXPECT_FLOAT_EQ(x.row(0)[0], -1);
    EXPECT_FLOAT_EQ(x.row(0)[1], 0);
    EXPECT_FLOAT_EQ(x.row(0)[2], 2);
    EXPECT_FLOAT_EQ(x.row(0)[3], 3);
  }
}

void silu_mul(const OpsContext& ops, const RowsView& gate, const RowsView& up,
              const MutableRowsView& out) {
  gated_activation(ops, {Activation{}, gate, up, out});
}

TEST(SiluMul, AgreesWithRef) {
  std::mt19937 rng(test_seed(3));
  for (const std::int64_t n : kSizes) {
    for (const std::int64_t rows : {0, 1, 5, 100}) {
      Rows gate(rows, n), up(rows, n);
      gate.randomize(rng);
      up.randomize(rng);
      Rows got(rows, n);
      Rows want = got;
      Context cpu(2), ref(1, Device::ref);
      silu_mul(cpu.ops, gate.view(), up.view(), got.out());
      silu_mul(ref.ops, gate.view(), up.view(), want.out());
      expect_near(got, want, 8 * kUnit);  // e^-v within 2 ulp, a sum, a quotient, a product
      silu_mul(cpu.ops, gate.view(), up.view(), gate.out());
      silu_mul(cpu.ops, up.view(), want.view(), want.out());  // only that it may be `up`
      EXPECT_TRUE(gate.same_bits(got));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SiluMul, AtTheEnds) {
  Context c(1);
  const float inf = __builtin_inff();
  Rows gate(1, 9), up(1, 9, 1), out(1, 9);
  const float values[] = {0, 100, -100, 1000, -1000, inf, 3e38f, -3e38f, __builtin_nanf("")};
  for (int i = 0; i < 9; ++i) gate.row(0)[i] = values[i];
  silu_mul(c.ops, gate.view(), up.view(), out.out());
  EXPECT_EQ(out.row(0)[0], 0);
  EXPECT_EQ(out.row(0)[1], 100);
  EXPECT_NEAR(out.row(0)[2], 0, 1e-30);
  EXPECT_EQ(out.row(0)[3], 1000);
  EXPECT_NEAR(out.row(0)[4], 0, 1e-30);
  EXPECT_EQ(out.row(0)[5], inf);
  EXPECT_EQ(out.row(0)[6], 3e38f);
  EXPECT_NEAR(out.row(0)[7], 0, 10);
  EXPECT_TRUE(std::isnan(out.row(0)[8]));
}

TEST(AddRows, AgreesWithRef) {
  std::mt19937 rng(test_seed(4));
  for (const std::int64_t n : kSizes) {
    Rows x(70, n), got(70, n);
    x.randomize(rng);
    got.randomize(rng);
    Rows want = got;
    Context cpu(2), ref(1, Device::ref);
    add_rows(cpu.ops, x.view(), got.out());
    add_rows(ref.ops, x.view(), want.out());
    EXPECT_TRUE(got.same_bits(want)) << n;  // one rounding on both
  }
}

TEST(ScaleRows, AgreesWithRef) {
  std::mt19937 rng(test_seed(5));
  const float factor[] = {-0.75f};
  for (const std::int64_t n : kSizes) {
    Rows x(3, n);
    x.randomize(rng);
    Context cpu(2), ref(1, Device::ref);
    Rows got = x, want = x;
    scale_rows(cpu.ops, got.out(), factor);
    scale_rows(ref.ops, want.out(), factor);
    EXPECT_TRUE(got.same_bits(want));
    scale_rows(cpu.ops, got.out(), 0.5f);
    scale_rows(ref.ops, want.out(), 0.5f);
    EXPECT_TRUE(got.same_bits(want));
    got = want = x;
    cap_rows(cpu.ops, got.out(), 1.5f);
    cap_rows(ref.ops, want.out(), 1.5f);
    expect_near(got, want, 0x1p-20);
  }
}

TEST(ScaleRows, CapsAtTheEnds) {
  for (const Device device : {Device::ref, Device::cpu}) {
    Context c(1, device);
    Rows x(1, 6);
    const float from[] = {0, 30, -3000, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 6; ++i) x.row(0)[i] = from[i];
    cap_rows(c.ops, x.out(), 30);
    EXPECT_EQ(x.row(0)[0], 0);
    EXPECT_NEAR(x.row(0)[1], 30 * std::tanh(1.0), 1e-4);
    EXPECT_EQ(x.row(0)[2], -30);
    EXPECT_EQ(x.row(0)[3], 30);
    EXPECT_EQ(x.row(0)[4], -30);
    EXPECT_TRUE(std::isnan(x.row(0)[5]));
  }
}

// Heads of their own width in the gate's rows: next to each head's q (Qwen 3 Next), or one number
// for all of a head.
TEST(GateRows, AgreeWithRef) {
  std::mt19937 rng(test_seed(6));
  for (const std::int64_t n : kSizes) {
    for (const bool one : {false, true}) {
      Rows got(3, 2 * n), gate(3, 4 * n);
      got.randomize(rng);
      gate.randomize(rng);
      gate.data[1] = 100;  // at both ends of the range
      gate.data[2 * static_cast<std::size_t>(n)] = -100;
      Rows want = got;
      const Rows before = got;
      Context cpu(2), ref(1, Device::ref);
      const RowsView first = constant(cols_at(gate.out(), n, one ? 1 : n));
      gate_rows(cpu.ops, {got.out(), first, 2, 2 * n});
      gate_rows(ref.ops, {want.out(), first, 2, 2 * n});
      for (std::int64_t t = 0; t < 3; ++t) {
        for (std::int64_t i = 0; i < 2 * n; ++i) {
          const double w = want.row(t)[i];
          ASSERT_NEAR(got.row(t)[i], w, std::fabs(w) * 0x1p-20 + 1e-30) << n << " " << i;
        }
      }
      const double last = gate.row(2)[3 * n + (one ? 0 : n - 1)];
      EXPECT_NEAR(want.row(2)[2 * n - 1], before.row(2)[2 * n - 1] / (1 + std::exp(-last)), 1e-6);
    }
  }
}

TEST(Embed, AgreesWithRef) {
  std::mt19937 rng(test_seed(5));
  const std::vector<std::int32_t> tokens = {4, 0, 4, 9, 1};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::e4m3}) {
    for (const std::int64_t n : kSizes) {
      const Weight table(rng, dtype, 10, n);
      Rows got(5, n);
      Rows want = got;
      Context cpu(2), ref(1, Device::ref);
      embed(cpu.ops, table.view, tokens, got.out());
      embed(ref.ops, table.view, tokens, want.out());
      EXPECT_TRUE(got.same_bits(want)) << name(dtype) << " " << n;
    }
  }
}

TEST(Embed, Scales) {
  const float table[] = {1, -2, 3, 0.5f};
  const WeightView view{reinterpret_cast<const std::byte*>(table), DType::f32, 2, 2};
  for (const Device device : {Device::ref, Device::cpu}) {
    Context c(1, device);
    Rows out(2, 2);
    embed(c.ops, view, std::vector<std::int32_t>{1, 0}, out.out(), 4);
    EXPECT_EQ(out.row(0)[0], 12);
    EXPECT_EQ(out.row(0)[1], 2);
    EXPECT_EQ(out.row(1)[1], -8);
  }
}

TEST(EmbedDeathTest, RefusesTokensOutsideTheTable) {
  std::mt19937 rng(test_seed(6));
  const Weight table(rng, DType::bf16, 10, 4);
  Rows out(1, 4);
  Context c(1);
  const std::vector<std::int32_t> tokens = {10};
  EXPECT_DEATH(embed(c.ops, table.view, tokens, out.out()), "tokens lie in the table");
}

// A row in a long batch on several threads has the bits of the same row alone.
TEST(Elementwise, ARowsBitsAreItsOwn) {
  std::mt19937 rng(test_seed(7));
  const std::int64_t rows = 300, n = 517;
  Rows x(rows, n), up(rows, n), weight(1, n, 0, 0);
  x.randomize(rng);
  up.randomize(rng);
  weight.randomize(rng);
  const std::span<const float> w(weight.row(0), static_cast<std::size_t>(n));
  Context alone(1);
  for (const int threads : {1, 2, 3}) {
    Context c(threads);
    for (int op = 0; op < 3; ++op) {
      const auto run = [&](const OpsContext& ops, std::int64_t first, std::int64_t m, Rows& out) {
        if (op == 0) rms_norm(ops, x.view(first, m), w, 1e-6f, out.out(first, m));
        if (op == 1) layer_norm(ops, x.view(first, m), w, w, 1e-6f, out.out(first, m));
        if (op == 2) silu_mul(ops, x.view(first, m), up.view(first, m), out.out(first, m));
      };
      Rows together(rows, n), single(rows, n);
      run(c.ops, 0, rows, together);
      for (std::int64_t t = 0; t < rows; ++t) run(alone.ops, t, 1, single);
      EXPECT_TRUE(together.same_bits(single)) << op << " on " << threads;
    }
  }
}

}  // namespace
}  // namespace lathe
