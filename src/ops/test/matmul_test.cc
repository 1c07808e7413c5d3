#include "ops/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/test_scale.h"
#include "kernels/ref/linear.h"
#include "ops/test/test_util.h"

namespace lathe {
namespace {

using ops_test::Context;
using ops_test::Rows;
using ops_test::Weight;

struct Format {
  DType dtype;
  bool scaled;
};
constexpr Format kFormats[] = {{DType::f32, false},  {DType::bf16, false}, {DType::f16, false},
                               {DType::e4m3, false}, {DType::e4m3, true},  {DType::e2m1, false}};

struct Shape {
  std::int64_t m, n, k;
};

// Sums of up to 1024 products have at most 1024 roundings and a tree's, then block sums, bias and
// the old out are added: |error| <= (n u / (1 - n u)) (sum |x w| + |bias| + |out|), u = 2^-24
// (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
double bound(const Product& p, std::int64_t t, std::int64_t n, double before) {
  const auto* x = reinterpret_cast<const float*>(p.x.row(t));
  double sum = std::abs(before) + (p.bias != nullptr ? std::abs(p.bias[n]) : 0.0);
  for (std::int64_t k = 0; k < p.w.cols; ++k) {
    sum += std::abs(double{x[k]} * weight_at(p.w, n, k));
  }
  const auto roundings =
      static_cast<double>(std::min<std::int64_t>(p.w.cols, 1024) + p.w.cols / 1024 + 4);
  const double nu = roundings * 0x1p-24;
  return nu / (1 - nu) * sum;
}

// cpu and ref agree element by element, and gaps between rows are not written.
void expect_as_ref(Shape shape, Format format, bool with_bias, bool add, int threads,
                   std::uint32_t seed) {
  std::mt19937 rng(test_seed(seed));
  shape.k = ops_test::whole_blocks(format.dtype, shape.k);
  const Weight w(rng, format.dtype, shape.n, shape.k, format.scaled);
  Rows x(shape.m, shape.k);
  x.randomize(rng);
  Rows bias(1, shape.n, 0, 0);
  bias.randomize(rng);
  Rows got(shape.m, shape.n);
  if (add) got.randomize(rng);
  const Rows before = got;
  Rows want = got;

  Product p{x.view(), w.view, got.out(), with_bias ? bias.row(0) : nullptr, add};
  Context cpu(threads);
  matmul(cpu.ops, p);
  Context ref(1, Device::ref);
  Product q = p;
  q.out = want.out();
  matmul(ref.ops, q);

  for (std::int64_t t = 0; t < shape.m; ++t) {
    for (std::int64_t i = 0; i < shape.n; ++i) {
      const double limit = bound(p, t, i, add ? before.row(t)[i] : 0);
      ASSERT_LE(std::abs(double{got.row(t)[i]} - want.row(t)[i]), limit)
          << name(format.dtype) << " m " << shape.m << " n " << shape.n << " k " << shape.k
          << " row " << t << " out " << i;
    }
    for (std::int64_t i = shape.n; i < got.stride; ++i) {
      ASSERT_TRUE(std::isnan(got.row(t)[i])) << "wrote between rows";
    }
  }
}

TEST(Matmul, OfSmallIntegersIsExact) {
  const float weight[] = {1, 2, 3, 4, 5, 6};  // [2, 3]
  const float rows[] = {1, 10, 100, -1, 0, 1};
  const float bias[] = {1000, 2000};
  float out[] = {7, 7, 7, 7};
  for (const Device device : {Device::ref, Device::cpu}) {
    std::fill(std::begin(out), std::end(out), 7.0f);
    Context c(1, device);
    Product p;
    p.x = {reinterpret_cast<const std::byte*>(rows), DType::f32, 2, 3, 3};
    p.w = {reinterpret_cast<const std::byte*>(weight), DType::f32, 2, 3, nullptr};
    p.out = {reinterpret_cast<std::byte*>(out), DType::f32, 2, 2, 2};
    p.bias = bias;
    p.add = true;
    matmul(c.ops, p);
    const float want[] = {1328, 2661, 1009, 2009};
    EXPECT_EQ(std::memcmp(out, want, sizeof(out)), 0) << name(device);
  }
}

// A row of a unit matrix selects one weight, so results must be the defined values of every e4m3
// code times its scale, and of f16's subnormals.
TEST(Matmul, WidensEveryCodeExactly) {
  for (const Format f : kFormats) {
    std::mt19937 rng(test_seed(3));
    for (const std::int64_t m : {1, 6, 30}) {
      const std::int64_t k = 160;
      Weight w(rng, f.dtype, 256, k, f.scaled);
      if (f.dtype == DType::e4m3) {
        for (std::size_t i = 0; i < w.bytes.size(); ++i) {
          const std::size_t code = i % 256;
          w.bytes[i] = static_cast<std::byte>((code & 0x7f) == 0x7f ? 0 : code);
        }
      }
      if (f.dtype == DType::f16) {
        for (std::size_t i = 0; i < w.bytes.size(); i += 4) w.bytes[i + 1] = std::byte{0x80};
      }
      Rows x(m, k, 0);
      for (std::int64_t t = 0; t < m; ++t) x.row(t)[(t * 31 + 5) % k] = 1;
      Rows out(m, 256);
      Context c(1);
      matmul(c.ops, {x.view(), w.view, out.out()});
      for (std::int64_t t = 0; t < m; ++t) {
        for (std::int64_t n = 0; n < 256; ++n) {
          ASSERT_EQ(out.row(t)[n], weight_at(w.view, n, (t * 31 + 5) % k)) << name(f.dtype);
        }
      }
    }
  }
}

TEST(Matmul, AgreesWithRef) {
  const std::int64_t sizes[] = {1, 3, 15, 16, 17, 127, 128, 129, 577};
  std::uint32_t seed = 10;
  for (const Format f : kFormats) {
    for (const std::int64_t n : sizes) {
      for (const std::int64_t k : sizes) {
        // Every pair of sizes with some m, every m with some sizes.
        const std::int64_t ms[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17};
        const std::int64_t m = ms[seed % std::size(ms)];
        expect_as_ref({m, n, k}, f, seed % 2 == 0, seed % 3 == 0, 1 + static_cast<int>(seed % 3),
                      seed);
        ++seed;
        if (HasFatalFailure()) return;
      }
    }
    // 12801 rows are 100 blocks of 129, and not 101.
    for (const Shape s : {Shape{64, 130, 576},
                          {300, 67, 129},
                          {131, 24, 1025},
                          {1, 24, 2048},
                          {2, 9, 3072},
                          {3, 8, 1040},
                          {5, 19, 2064},
                          {129, 9, 2100},
                          {12801, 3, 8}}) {
      expect_as_ref(s, f, seed % 2 == 0, seed % 3 == 0, 2, seed);
      ++seed;
      if (HasFatalFailure()) return;
    }
  }
}

// Row i of a GEMM of m rows has the bits of the same row alone, for any threads and any list.
TEST(Matmul, ARowsBitsAreItsOwn) {
  for (const Format f : kFormats) {
    for (const std::int64_t depth : {128, 1111, 2304}) {
      const std::int64_t k = ops_test::whole_blocks(f.dtype, depth);
      std::mt19937 rng(test_seed(5));
      const std::int64_t n = 203;
      const Weight w(rng, f.dtype, n, k, f.scaled);
      const Weight other(rng, f.dtype, 64, k, f.scaled);
      const std::int64_t most = 140;
      Rows x(most, k);
      x.randomize(rng);
      Rows alone(most, n);
      Context one(1);
      for (std::int64_t t = 0; t < most; ++t) {
        matmul(one.ops, {x.view(t, 1), w.view, alone.out(t, 1)});
      }
      for (const std::int64_t m : {2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 64, 140}) {
        for (const int threads : {1, 2, 3}) {
          if (threads > 1 && m != 2 && m != 7 && m != 140) continue;
          Rows out(most, n);
          Rows beside(m, 64);
          Context c(threads);
          const Product list[] = {{x.view(0, m), other.view, beside.out()},
                                  {x.view(0, m), w.view, out.out(0, m)},
                                  {x.view(m, most - m), w.view, out.out(m, most - m)}};
          matmul(c.ops, list);
          ASSERT_TRUE(out.same_bits(alone))
              << name(f.dtype) << " k " << k << " m " << m << " threads " << threads;
        }
      }
    }
  }
}

TEST(Matmul, RowsDoNotSeeTheirNeighbours) {
  std::mt19937 rng(test_seed(6));
  for (const std::int64_t m : {2, 3, 7, 20}) {
    const Weight w(rng, DType::bf16, 40, 100);
    Rows x(m, 100);
    x.randomize(rng);
    Rows clean(m, 40);
    Context c(1);
    matmul(c.ops, {x.view(), w.view, clean.out()});
    x.row(1)[50] = __builtin_nanf("");
    Rows out(m, 40);
    matmul(c.ops, {x.view(), w.view, out.out()});
    for (std::int64_t t = 0; t < m; ++t) {
      for (std::int64_t i = 0; i < 40; ++i) {
        if (t == 1) {
          EXPECT_TRUE(std::isnan(out.row(t)[i]));
        } else {
          EXPECT_EQ(out.row(t)[i], clean.row(t)[i]);
        }
      }
    }
  }
}

TEST(Matmul, AllocatesNothingTheSecondTime) {
  std::mt19937 rng(test_seed(7));
  const Weight w(rng, DType::e4m3, 300, 1500, true);
  Rows x(200, 1500);
  x.randomize(rng);
  Rows out(200, 300);
  Context c(3);
  matmul(c.ops, {x.view(), w.view, out.out()});
  const std::int64_t growths = c.arena.growths();
  EXPECT_GT(growths, 0);
  for (const std::int64_t m : {1, 8, 200}) {
    matmul(c.ops, {x.view(0, m), w.view, out.out(0, m)});
  }
  EXPECT_EQ(c.arena.growths(), growths);
}

TEST(MatmulDeathTest, RefusesShapesThatContradict) {
  std::mt19937 rng(test_seed(8));
  const Weight w(rng, DType::f32, 4, 8);
  const Rows x(2, 7, 0);
  Rows out(2, 4);
  Context c(1);
  EXPECT_DEATH(matmul(c.ops, {x.view(), w.view, out.out()}), "x has the weight's columns");
}

}  // namespace
}  // namespace lathe
