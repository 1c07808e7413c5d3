// GEMMs by bf16 pairs (OpsContext::precision bf16). The oracle computes in double with the same
// operands: x times the weight block's scale, rounded to bf16 by base/float_formats.h.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/test_scale.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/ref/linear.h"
#include "ops/matmul.h"
#include "ops/test/test_util.h"

namespace lathe {
namespace {

using ops_test::Rows;
using ops_test::Weight;

struct PairContext : ops_test::Context {
  explicit PairContext(int threads) : ops_test::Context(threads) {
    ops.precision = MatmulPrecision::bf16;
  }
};

class MatmulBf16 : public testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_has_bf16_dot()) GTEST_SKIP() << "this CPU has no dot products of bf16 pairs";
  }
};

struct PairFormat {
  DType dtype;
  bool scaled;
};
constexpr PairFormat kPairFormats[] = {
    {DType::bf16, false}, {DType::e4m3, false}, {DType::e4m3, true}, {DType::e2m1, false}};

// Weight (n, k) without its block's scale.
double bare(const WeightView& w, std::int64_t n, std::int64_t k) {
  WeightView unscaled = w;
  unscaled.scales = nullptr;
  return weight_at(unscaled, n, k);
}

double rounded_x(const Product& p, std::int64_t t, std::int64_t n, std::int64_t k) {
  const std::int64_t across = (p.w.cols + 127) / 128;
  const float scale = p.w.scales == nullptr ? 1 : p.w.scales[n / 128 * across + k / 128];
  return to_f32(to_bf16(reinterpret_cast<const float*>(p.x.row(t))[k] * scale));
}

// Products of bf16 are exact in f32. A lane rounds at most twice per pair and has up to 32 pairs in
// a block; then four levels of a tree, block sums, bias and the old out are added. With u = 2^-24,
// |error| <= (n u / (1 - n u)) (sum |x w| + |bias| + |out|) (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1).
void expect_as_oracle(const Product& p, const Rows& got, const Rows& before) {
  const std::int64_t depth = p.w.cols;
  const double nu =
      static_cast<double>((std::min<std::int64_t>(depth, 1024) + 31) / 32 * 2 + depth / 1024 + 7) *
      0x1p-24;
  for (std::int64_t t = 0; t < p.x.rows; ++t) {
    for (std::int64_t n = 0; n < p.w.rows; ++n) {
      double want =
          (p.bias == nullptr ? 0.0 : double{p.bias[n]}) + (p.add ? double{before.row(t)[n]} : 0.0);
      double size = (p.bias == nullptr ? 0.0 : std::abs(double{p.bias[n]})) +
                    (p.add ? std::abs(double{before.row(t)[n]}) : 0.0);
      for (std::int64_t k = 0; k < depth; ++k) {
        const double product = rounded_x(p, t, n, k) * bare(p.w, n, k);
        want += product;
        size += std::abs(product);
      }
      ASSERT_LE(std::abs(got.row(t)[n] - want), nu / (1 - nu) * size)
          << name(p.w.dtype) << " m " << p.x.rows << " n " << p.w.rows << " k " << depth << " row "
          << t << " out " << n;
    }
    for (std::int64_t i = p.w.rows; i < got.stride; ++i) {
      ASSERT_TRUE(std::isnan(got.row(t)[i])) << "wrote between rows";
    }
  }
}

void check(std::int64_t m, std::int64_t n, std::int64_t k, PairFormat format, std::uint32_t seed) {
  std::mt19937 rng(test_seed(seed));
  k = ops_test::whole_blocks(format.dtype, k);
  const Weight w(rng, format.dtype, n, k, format.scaled);
  Rows x(m, k);
  x.randomize(rng);
  Rows bias(1, n, 0, 0);
  bias.randomize(rng);
  const bool add = seed % 3 == 0;
  Rows got(m, n);
  if (add) got.randomize(rng);
  const Rows before = got;
  const Product p{x.view(), w.view, got.out(), seed % 2 == 0 ? bias.row(0) : nullptr, add};
  PairContext c(1 + static_cast<int>(seed % 3));
  matmul(c.ops, p);
  expect_as_oracle(p, got, before);
}

TEST_F(MatmulBf16, AgreesWithTheOracle) {
  const std::int64_t depths[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 577, 1025, 2100};
  const std::int64_t outs[] = {1, 3, 8, 9, 17, 130};
  const std::int64_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 20};
  std::uint32_t seed = 10;
  for (const PairFormat f : kPairFormats) {
    for (const std::int64_t k : depths) {
      for (const std::int64_t n : outs) {
        check(rows[seed % std::size(rows)], n, k, f, seed);
        ++seed;
        if (HasFatalFailure()) return;
      }
    }
    check(131, 260, 1100, f, ++seed);
    check(300, 67, 129, f, ++seed);
  }
}

TEST_F(MatmulBf16, OfSmallIntegersIsExact) {
  std::mt19937 rng(test_seed(1));
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    for (const std::int64_t m : {1, 3, 5, 16, 23}) {
      const std::int64_t n = 21, k = 1500;
      Weight w(rng, dtype, n, k);
      std::vector<int> weights(static_cast<std::size_t>(n * k));
      for (std::size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<int>(rng() % 17) - 8;
        const auto value = static_cast<float>(weights[i]);
        const bf16 b = to_bf16(value);
        const e4m3 e = to_e4m3(value);
        if (dtype == DType::bf16) std::memcpy(w.bytes.data() + 2 * i, &b, 2);
        if (dtype == DType::e4m3) std::memcpy(w.bytes.data() + i, &e, 1);
      }
      Rows x(m, k), out(m, n, 1000);
      for (std::int64_t t = 0; t < m; ++t) {
        for (std::int64_t i = 0; i < k; ++i) {
          x.row(t)[i] = static_cast<float>(static_cast<int>(rng() % 401) - 200);
        }
      }
      PairContext c(1);
      matmul(c.ops, {x.view(), w.view, out.out(), nullptr, true});
      for (std::int64_t t = 0; t < m; ++t) {
        for (std::int64_t i = 0; i < n; ++i) {
          std::int64_t want = 1000;
          for (std::int64_t j = 0; j < k; ++j) {
            want += static_cast<std::int64_t>(x.row(t)[j]) *
                    weights[static_cast<std::size_t>(i * k + j)];
          }
          ASSERT_EQ(out.row(t)[i], static_cast<float>(want)) << name(dtype) << " m " << m;
        }
      }
    }
  }
}

// Rows of a unit matrix select weights, so results must be the codes' defined values: all of e4m3,
// subnormals included, and all finite normal numbers and zero of bf16.
TEST_F(MatmulBf16, TakesEveryCodeExactly) {
  std::mt19937 rng(test_seed(2));
  const std::int64_t k = 160;
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    const std::int64_t n = dtype == DType::bf16 ? 512 : 256;
    Weight w(rng, dtype, n, k);
    for (std::int64_t i = 0; i < n * k; ++i) {
      if (dtype == DType::e4m3) {
        const auto code = static_cast<std::uint8_t>((i + i / 256) % 256);
        w.bytes[static_cast<std::size_t>(i)] =
            std::byte{(code & 0x7f) == 0x7f ? std::uint8_t{0} : code};
        continue;
      }
      auto bits = static_cast<std::uint16_t>(i);
      const int exponent = bits >> 7 & 0xff;
      if (exponent == 0 || exponent == 0xff) bits &= 0x8000;
      std::memcpy(w.bytes.data() + 2 * i, &bits, 2);
    }
    for (const std::int64_t together : {1, 2, 6, 16, 160}) {
      Rows x(k, k, 0);
      for (std::int64_t t = 0; t < k; ++t) x.row(t)[t] = 1;
      Rows out(k, n);
      PairContext c(1);
      for (std::int64_t t = 0; t < k; t += together) {
        const std::int64_t m = std::min(together, k - t);
        matmul(c.ops, {x.view(t, m), w.view, out.out(t, m)});
      }
      for (std::int64_t t = 0; t < k; ++t) {
        for (std::int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(out.row(t)[i], bare(w.view, i, t)) << name(dtype) << " rows " << together;
        }
      }
    }
  }
}

// Row i of a GEMM of m rows has the bits of the same row alone, for any threads and any list.
TEST_F(MatmulBf16, ARowsBitsAreItsOwn) {
  for (const PairFormat f : kPairFormats) {
    for (const std::int64_t depth : {128, 1111, 2304}) {
      const std::int64_t k = ops_test::whole_blocks(f.dtype, depth);
      std::mt19937 rng(test_seed(5));
      const std::int64_t n = 203, most = 140;
      const Weight w(rng, f.dtype, n, k, f.scaled);
      const Weight other(rng, DType::f16, 64, k);
      Rows x(most, k);
      x.randomize(rng);
      Rows alone(most, n);
      PairContext one(1);
      for (std::int64_t t = 0; t < most; ++t) {
        matmul(one.ops, {x.view(t, 1), w.view, alone.out(t, 1)});
      }
      for (const std::int64_t m : {2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 64, 140}) {
        for (const int threads : {1, 2, 3}) {
          if (threads > 1 && m != 2 && m != 7 && m != 140) continue;
          Rows out(most, n);
          Rows beside(m, 64);
          PairContext c(threads);
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

TEST_F(MatmulBf16, RowsDoNotSeeTheirNeighbours) {
  std::mt19937 rng(test_seed(6));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const PairFormat f : kPairFormats) {
      for (const std::int64_t m : {2, 3, 7, 20}) {
        const std::int64_t k = ops_test::whole_blocks(f.dtype, 100);
        const Weight w(rng, f.dtype, 40, k, f.scaled);
        Rows x(m, k);
        x.randomize(rng);
        Rows clean(m, 40);
        PairContext c(1);
        matmul(c.ops, {x.view(), w.view, clean.out()});
        x.row(1)[50] = bad;
        Rows out(m, 40);
        matmul(c.ops, {x.view(), w.view, out.out()});
        for (std::int64_t t = 0; t < m; ++t) {
          for (std::int64_t i = 0; i < 40; ++i) {
            if (t == 1) {
              EXPECT_FALSE(std::isfinite(out.row(t)[i]));
            } else {
              EXPECT_EQ(out.row(t)[i], clean.row(t)[i]);
            }
          }
        }
      }
    }
  }
}

// A weight's last row may end at the end of its file's mapping.
TEST_F(MatmulBf16, ReadsNothingBehindTheWeight) {
  std::mt19937 rng(test_seed(7));
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t size = 64 * page;
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + size, page, PROT_NONE), 0);
  for (const PairFormat f : kPairFormats) {
    for (const std::int64_t depth : {1, 33, 64, 129, 577, 1100}) {
      const std::int64_t k = ops_test::whole_blocks(f.dtype, depth);
      for (const std::int64_t m : {1, 5, 20}) {
        Weight w(rng, f.dtype, 11, k, f.scaled);
        Rows x(m, k), out(m, 11), want(m, 11);
        x.randomize(rng);
        PairContext c(1);
        matmul(c.ops, {x.view(), w.view, want.out()});
        std::byte* at = memory + size - w.bytes.size();
        std::copy(w.bytes.begin(), w.bytes.end(), at);
        w.view.data = at;
        matmul(c.ops, {x.view(), w.view, out.out()});
        EXPECT_TRUE(out.same_bits(want));
      }
    }
  }
  munmap(memory, size + page);
}

TEST_F(MatmulBf16, OtherWeightsAreMultipliedInF32) {
  std::mt19937 rng(test_seed(8));
  for (const DType dtype : {DType::f32, DType::f16}) {
    const Weight w(rng, dtype, 50, 300);
    Rows x(20, 300), out(20, 50), want(20, 50);
    x.randomize(rng);
    PairContext c(1);
    matmul(c.ops, {x.view(), w.view, out.out()});
    ops_test::Context f32(1);
    matmul(f32.ops, {x.view(), w.view, want.out()});
    EXPECT_TRUE(out.same_bits(want)) << name(dtype);
  }
}

}  // namespace
}  // namespace lathe
