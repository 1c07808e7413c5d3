// GEMMs and row-wise operators on every SIMD target that this build has and this machine can run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/test_scale.h"
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/rowwise/rowwise.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/rowwise.h"

namespace lathe {
namespace {

using cpu_test::on_every_target;

using Floats = std::vector<float>;

constexpr double kUnit = 0x1p-24;  // half an ulp of 1 in f32

Floats random_floats(std::mt19937& rng, std::int64_t n) {
  std::normal_distribution<float> normal;
  Floats x(static_cast<std::size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

RowsView view(const Floats& x, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<const std::byte*>(x.data()), DType::f32, rows, cols, cols};
}
MutableRowsView view(Floats& x, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<std::byte*>(x.data()), DType::f32, rows, cols, cols};
}

// |got - want| <= relative * max(|want|, floor), for every element.
void expect_near(const Floats& got, const Floats& want, double relative, double floor) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = want[i];
    ASSERT_LE(std::abs(got[i] - w), relative * std::max(std::abs(w), floor)) << "element " << i;
  }
}

bool same_bits(const Floats& a, const Floats& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A weight of any dtype with scales as in a checkpoint.
struct Weight {
  std::vector<std::byte> bytes;
  Floats scales;
  std::vector<ue8m0> mx_scales;
  WeightView view;

  Weight(std::mt19937& rng, DType dtype, std::int64_t rows, std::int64_t cols)
      : bytes(static_cast<std::size_t>(bytes_of(dtype, rows * cols))) {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      if (dtype == DType::f32) put(i, normal(rng));
      if (dtype == DType::bf16) put(i, to_bf16(normal(rng)));
      if (dtype == DType::f16) put(i, to_f16(normal(rng)));
      if (dtype == DType::e4m3) put(i, to_e4m3(normal(rng)));
    }
    view = {bytes.data(), dtype, rows, cols};
    const auto blocks = [](std::int64_t n) { return (n + kWeightBlock - 1) / kWeightBlock; };
    if (dtype == DType::e4m3) {
      std::uniform_real_distribution<float> uniform(0.01f, 1.0f);
      scales.resize(static_cast<std::size_t>(blocks(rows) * blocks(cols)));
      for (float& s : scales) s = uniform(rng);
      view.scales = scales.data();
    }
    if (dtype == DType::e2m1) {
      for (std::byte& pair : bytes) pair = static_cast<std::byte>(rng() & 0xff);
      for (std::int64_t i = 0; i < rows * cols / kMxBlock; ++i) {
        mx_scales.push_back({static_cast<std::uint8_t>(120 + rng() % 8)});
      }
      view.mx_scales = mx_scales.data();
    }
  }

 private:
  template <class T>
  void put(std::int64_t i, T x) {
    std::memcpy(bytes.data() + i * std::int64_t{sizeof(T)}, &x, sizeof(T));
  }
};

// Against double precision: at most n roundings of the sum of |x w| (Higham, Accuracy and Stability
// of Numerical Algorithms, section 3.1). A single row streams the stored weights, and many rows use
// widened panels; both give a row the same bits.
TEST(MatmulTargets, AgreeWithTheOracle) {
  std::mt19937 rng(test_seed(71));
  constexpr std::int64_t kRows = 21, kOuts = 37, kDepth = 1312;
  const Floats x = random_floats(rng, kRows * kDepth);
  const Floats bias = random_floats(rng, kOuts);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e2m1}) {
    SCOPED_TRACE(name(dtype));
    const Weight w(rng, dtype, kOuts, kDepth);
    Floats want(kRows * kOuts);
    const Product oracle{view(x, kRows, kDepth), w.view, view(want, kRows, kOuts), bias.data()};
    ref_matmul({&oracle, 1});
    Floats limit(want.size());
    for (std::int64_t t = 0; t < kRows; ++t) {
      for (std::int64_t n = 0; n < kOuts; ++n) {
        double sum = std::abs(bias[static_cast<std::size_t>(n)]);
        for (std::int64_t k = 0; k < kDepth; ++k) {
          sum += std::abs(double{x[static_cast<std::size_t>(t * kDepth + k)]} *
                          weight_at(w.view, n, k));
        }
        limit[static_cast<std::size_t>(t * kOuts + n)] =
            static_cast<float>(kUnit * (1024 + 8) * sum);
      }
    }
    on_every_target([&] {
      Arena arena;
      Floats got(kRows * kOuts);
      const Product all{view(x, kRows, kDepth), w.view, view(got, kRows, kOuts), bias.data()};
      cpu_matmul({}, arena, MatmulPrecision::f32, {&all, 1});
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_LE(std::abs(got[i] - want[i]), limit[i]) << "element " << i;
      }
      for (const std::int64_t t : {std::int64_t{0}, kRows - 1}) {
        Floats alone(kOuts);
        Product one = all;
        one.x = {all.x.row(t), DType::f32, 1, kDepth, kDepth};
        one.out = view(alone, 1, kOuts);
        cpu_matmul({}, arena, MatmulPrecision::f32, {&one, 1});
        EXPECT_EQ(std::memcmp(alone.data(), got.data() + t * kOuts, kOuts * sizeof(float)), 0);
      }
    });
  }
}

// A GEMM writes only the arena memory that it has allocated. (x of up to 16 rows is packed whole,
// whatever its width.)
// What a rank computes that has no columns of a weight: the bias alone, whatever was in `out`.
TEST(Matmul, WithoutColumnsIsTheBias) {
  const std::byte none{};
  const std::vector<float> bias = {1, -2, 3, 0.5f, 7};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto precision : {MatmulPrecision::f32, MatmulPrecision::bf16}) {
      if (precision == MatmulPrecision::bf16 && !cpu_has_bf16_dot()) continue;
      for (const std::int64_t rows : {1, 3, 70}) {
        Arena arena;
        const MutableRowsView x = alloc_rows(arena, rows, 0), out = alloc_rows(arena, rows, 5);
        for (std::int64_t i = 0; i < rows; ++i) {
          std::fill_n(reinterpret_cast<float*>(out.row(i)), 5, 9.0f);
        }
        const Product product{constant(x), {&none, dtype, 5, 0}, out, bias.data()};
        cpu_matmul({}, arena, precision, {&product, 1});
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::span row(reinterpret_cast<const float*>(out.row(i)), 5);
          EXPECT_TRUE(std::ranges::equal(row, bias)) << name(dtype) << ", row " << i;
        }
      }
    }
  }
}

TEST(Matmul, WritesOnlyTheScratchThatItTakes) {
  constexpr std::int64_t kSpare = std::int64_t{1} << 21, kMost = 130, kOuts = 128, kDepth = 7168;
  constexpr auto kUntouched = std::byte{0x5a};
  std::mt19937 rng(test_seed(76));
  const Floats x = random_floats(rng, kMost * kDepth);
  for (const DType dtype : {DType::f32, DType::bf16, DType::e2m1}) {
    const Weight w(rng, dtype, kOuts, kDepth);
    for (const std::int64_t m : {1, 3, 15, 16, 17, 18, 130}) {
      for (const auto precision : {MatmulPrecision::f32, MatmulPrecision::bf16}) {
        if (precision == MatmulPrecision::bf16 && !cpu_has_bf16_dot()) continue;
        Floats out(static_cast<std::size_t>(m * kOuts));
        const Product p{view(x, m, kDepth), w.view, view(out, m, kOuts)};
        Arena probe;
        cpu_matmul({}, probe, precision, {&p, 1});
        const std::int64_t taken = probe.high_water();
        Arena arena;
        const auto whole = [&] {
          const Arena::Scope scope(arena);
          return std::span(arena.take(taken + kSpare), static_cast<std::size_t>(taken + kSpare));
        };
        std::ranges::fill(whole(), kUntouched);
        cpu_matmul({}, arena, precision, {&p, 1});
        const auto behind = whole().subspan(static_cast<std::size_t>(taken));
        EXPECT_TRUE(std::ranges::all_of(behind, [](std::byte b) { return b == kUntouched; }))
            << m << " rows of " << name(dtype) << " in " << name(precision);
      }
    }
  }
}

// Widths on both sides of every vector length.
constexpr std::int64_t kWidths[] = {1, 7, 16, 33, 577};
constexpr std::int64_t kRows = 3;

TEST(RowwiseTargets, NormsAgreeWithTheOracle) {
  std::mt19937 rng(test_seed(72));
  for (const std::int64_t n : kWidths) {
    SCOPED_TRACE(n);
    const Floats x = random_floats(rng, kRows * n), weight = random_floats(rng, n);
    const Floats bias = random_floats(rng, n);
    Floats rms(x.size()), layer(x.size());
    const auto rms_of = [&](Floats& out) {
      return RmsNorm{
          .x = view(x, kRows, n), .weight = weight, .eps = 1e-6f, .out = view(out, kRows, n)};
    };
    const auto layer_of = [&](Floats& out) {
      return LayerNorm{view(x, kRows, n), weight, bias, 0.1f, view(out, kRows, n)};
    };
    ref_rms_norm(rms_of(rms));
    ref_layer_norm(layer_of(layer));
    on_every_target([&] {
      Floats got(x.size());
      cpu_rms_norm({}, rms_of(got));
      expect_near(got, rms, kUnit * (static_cast<double>(n) / 2 + 8), 0);
      cpu_layer_norm({}, layer_of(got));
      // A mean of n roundings, times 1 / sqrt(var + 0.1) <= 3.2.
      expect_near(got, layer, kUnit * (32 * static_cast<double>(n) + 128), 4);
    });
  }
}

TEST(RowwiseTargets, SiluAgreesWithTheOracle) {
  std::mt19937 rng(test_seed(73));
  for (const std::int64_t n : kWidths) {
    SCOPED_TRACE(n);
    const Floats gate = random_floats(rng, kRows * n), up = random_floats(rng, kRows * n);
    Floats want(gate.size());
    ref_gated_activation({{}, view(gate, kRows, n), view(up, kRows, n), view(want, kRows, n)});
    on_every_target([&] {
      Floats got(gate.size());
      cpu_gated_activation({}, {{}, view(gate, kRows, n), view(up, kRows, n), view(got, kRows, n)});
      // e^-v within 2 ulp, a sum, a quotient, a product; more without FMAs.
      expect_near(got, want, 16 * kUnit, 0);
    });
  }
}

TEST(RowwiseTargets, ScaledSumsAgreeWithTheOracle) {
  std::mt19937 rng(test_seed(74));
  for (const std::int64_t n : kWidths) {
    SCOPED_TRACE(n);
    const Floats x = random_floats(rng, n), y = random_floats(rng, n);
    on_every_target([&] {
      Floats got = y;
      cpu_add_scaled(x.data(), 0.3f, n, got.data());
      for (std::size_t i = 0; i < got.size(); ++i) {
        // One rounding, or two without FMAs.
        const double product = double{0.3f} * double{x[i]};
        EXPECT_LE(std::abs(got[i] - (product + double{y[i]})),
                  2 * kUnit * (std::abs(product) + std::abs(double{y[i]})));
      }
    });
  }
}

// At most one rounding per element, so every target gives the same bits.
TEST(RowwiseTargets, SumsAndRowsOfTablesAreTheSameBits) {
  std::mt19937 rng(test_seed(75));
  for (const std::int64_t n : kWidths) {
    SCOPED_TRACE(n);
    const Floats x = random_floats(rng, kRows * n), y = random_floats(rng, kRows * n);
    Floats sums = y;
    ref_add_rows(view(x, kRows, n), view(sums, kRows, n));
    on_every_target([&] {
      Floats got = y;
      cpu_add_rows({}, view(x, kRows, n), view(got, kRows, n));
      EXPECT_TRUE(same_bits(got, sums));
    });
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::e4m3}) {
      SCOPED_TRACE(name(dtype));
      Weight table(rng, dtype, 150, n);
      table.view.scales = nullptr;  // tables have none
      const std::int32_t tokens[kRows] = {0, 149, 130};
      Floats want(kRows * static_cast<std::size_t>(n));
      ref_embed({table.view, tokens, view(want, kRows, n), 1, 0, table.view.rows});
      on_every_target([&] {
        Floats got(want.size());
        cpu_embed({}, {table.view, tokens, view(got, kRows, n), 1, 0, table.view.rows});
        EXPECT_TRUE(same_bits(got, want));
      });
    }
  }
}

}  // namespace
}  // namespace lathe
