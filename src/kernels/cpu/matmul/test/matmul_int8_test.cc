// GEMMs of int4 weights with x in 8-bit integers, against double precision with the same rounded x.
#include "kernels/cpu/matmul/matmul_int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "base/threads.h"
#include "kernels/cpu/matmul/test/matmul_cases_test_util.h"

namespace lathe {
namespace {

struct Int8Case {
  std::int32_t size;  // of a group
  DType scales;       // bf16 or f16
  bool zeros;
};
constexpr Int8Case kInt8Cases[] = {{32, DType::bf16, false},  {32, DType::f16, true},
                                   {64, DType::f16, false},   {64, DType::bf16, true},
                                   {128, DType::bf16, false}, {128, DType::f16, true}};

WeightView random_int4(std::mt19937& rng, const Int8Case& c, std::int64_t n, std::int64_t k,
                       GuardedMemory& memory) {
  WeightView w;
  w.dtype = DType::u4;
  w.rows = n;
  w.cols = k;
  w.data = memory.random_bytes(rng, n * k / 2, 0, 256);
  const std::int64_t groups = n * (k / c.size);
  w.groups.dtype = c.scales;
  w.groups.size = c.size;
  std::byte* scales = memory.take(2 * groups);
  std::uniform_real_distribution<float> uniform(-1e-1f, 1e-1f);
  for (std::int64_t i = 0; i < groups; ++i) {
    const float v = uniform(rng);
    const std::uint16_t bits = c.scales == DType::bf16 ? to_bf16(v).bits : to_f16(v).bits;
    std::memcpy(scales + 2 * i, &bits, sizeof(bits));
  }
  w.groups.data = scales;
  if (c.zeros) {
    w.groups.zeros = reinterpret_cast<const std::uint8_t*>(memory.random_bytes(rng, groups, 0, 17));
  }
  return w;
}

// x as the header of matmul_int8.h says: of each group whole multiples of its largest size / 127.
std::vector<double> rounded(const MatmulRows& x, std::int64_t size) {
  std::vector<double> out(x.data.size());
  for (std::size_t first = 0; first < out.size(); first += static_cast<std::size_t>(size)) {
    float most = 0;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(size); ++i) {
      most = std::max(most, std::abs(x.data[i]));
    }
    for (std::size_t i = first; i < first + static_cast<std::size_t>(size); ++i) {
      const double code = most == 0 ? 0 : std::nearbyint(double{x.data[i]} * (127 / double{most}));
      out[i] = code * (double{most} / 127);
    }
  }
  return out;
}

// |got - want| of a row: the rounded x has one f32 rounding of its scale, and a sum of g groups at
// most g + 3. A code can differ by one where x is within a rounding of the middle of two; that is
// 1 / 127 of the group's largest size.
void expect_rows(const MatmulRows& x, const WeightView& w, const MatmulRows& got) {
  const std::vector<double> codes = rounded(x, w.groups.size);
  const double roundings = static_cast<double>(w.cols / w.groups.size + 4) * 0x1p-24;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      double want = 0, size = 0;
      for (std::int64_t k = 0; k < w.cols; ++k) {
        const double product = codes[static_cast<std::size_t>(t * w.cols + k)] * weight_at(w, n, k);
        want += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(got.data[static_cast<std::size_t>(t * w.rows + n)], want, roundings * size)
          << "row " << t << " out " << n << " of " << w.rows << " x " << w.cols;
    }
  }
}

class MatmulInt8 : public testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_has_int8_dot()) GTEST_SKIP() << "this CPU has no dot products of 8-bit integers";
  }
};

TEST_F(MatmulInt8, AgreesWithTheOracle) {
  std::mt19937 rng(test_seed(59));
  for (const Int8Case& c : kInt8Cases) {
    SCOPED_TRACE(testing::Message() << "groups of " << c.size << (c.zeros ? " with zeros" : ""));
    for (const std::int64_t groups : {1, 2, 3, 5, 17, 18, 35}) {
      const std::int64_t n = std::vector{1, 16, 63, 64, 65, 130}[rng() % 6];
      const std::int64_t m = std::vector{1, 2, 5, 6, 7, 13, 40}[rng() % 7];
      GuardedMemory memory;
      const WeightView w = random_int4(rng, c, n, groups * c.size, memory);
      // Quarters, so that no quotient is next to the middle of two codes: sizes up to 127 / 4.
      MatmulRows x(m, w.cols), got(m, n);
      for (std::size_t i = 0; i < x.data.size(); ++i) {
        const int quarters = i % 32 == 0 ? 508 : static_cast<int>(rng() % 1017) - 508;
        x.data[i] = static_cast<float>(quarters % 4 == 2 ? quarters + 1 : quarters) / 16;
      }
      cpu_multiply(MatmulPrecision::int8, {x.view(0, m), w, got.out(0, m)});
      expect_rows(x, w, got);
      if (HasFatalFailure()) return;
    }
  }
}

// More rows than a task has, a bias, a sum with what is there, threads and other weights in the
// list.
TEST_F(MatmulInt8, ARowsBitsAreItsOwn) {
  std::mt19937 rng(test_seed(60));
  std::normal_distribution<float> normal;
  GuardedMemory memory;
  const WeightView w = random_int4(rng, kInt8Cases[5], 200, 384, memory);
  const WeightView v = random_int4(rng, kInt8Cases[0], 72, 384, memory);
  WeightView f;
  f.dtype = DType::f32;
  f.rows = 24;
  f.cols = 384;
  MatmulRows wide(24, 384);
  const std::int64_t m = 1030;
  MatmulRows x(m, 384), a(m, 200), b(m, 72), c(m, 24);
  std::vector<float> bias(200);
  for (std::vector<float>* values : {&wide.data, &x.data, &b.data, &bias}) {
    for (float& value : *values) value = normal(rng);
  }
  f.data = reinterpret_cast<const std::byte*>(wide.data.data());
  const MatmulRows before = b;
  ThreadPool pool(3);
  Arena arena;
  const Product all[] = {{x.view(0, m), w, a.out(0, m), bias.data()},
                         {x.view(0, m), f, c.out(0, m)},
                         {x.view(0, m), v, b.out(0, m), nullptr, true}};
  cpu_matmul({.threads = &pool}, arena, MatmulPrecision::int8, all);
  MatmulRows one(1, 200), two(1, 72), three(1, 24);
  for (const std::int64_t t : {0, 1, 5, 511, 512, 1029}) {
    SCOPED_TRACE(t);
    cpu_multiply(MatmulPrecision::int8, {x.view(t, 1), w, one.out(0, 1)});
    cpu_multiply(MatmulPrecision::int8, {x.view(t, 1), v, two.out(0, 1)});
    cpu_multiply(MatmulPrecision::f32, {x.view(t, 1), f, three.out(0, 1)});
    for (std::size_t n = 0; n < 200; ++n) {
      ASSERT_EQ(a.data[static_cast<std::size_t>(t) * 200 + n], one.data[n] + bias[n]);
    }
    for (std::size_t n = 0; n < 72; ++n) {
      const std::size_t at = static_cast<std::size_t>(t) * 72 + n;
      ASSERT_EQ(b.data[at], before.data[at] + two.data[n]);
    }
    for (std::size_t n = 0; n < 24; ++n) {
      ASSERT_EQ(c.data[static_cast<std::size_t>(t) * 24 + n], three.data[n]);
    }
  }
}

// What is not finite stays in its row, and zeros and tiny values are zeros.
TEST_F(MatmulInt8, SpecialValues) {
  std::mt19937 rng(test_seed(61));
  GuardedMemory memory;
  const WeightView w = random_int4(rng, kInt8Cases[2], 20, 256, memory);
  MatmulRows x(5, 256), got(5, 20);
  x.data[10] = std::numeric_limits<float>::quiet_NaN();
  x.data[256 + 200] = std::numeric_limits<float>::infinity();
  x.data[2 * 256 + 3] = 1e-38f;
  x.data[4 * 256] = 3e38f;
  cpu_multiply(MatmulPrecision::int8, {x.view(0, 5), w, got.out(0, 5)});
  for (std::size_t n = 0; n < 20; ++n) {
    EXPECT_TRUE(std::isnan(got.data[n]));
    EXPECT_TRUE(std::isnan(got.data[20 + n]));
    EXPECT_EQ(got.data[2 * 20 + n], 0);
    EXPECT_EQ(got.data[3 * 20 + n], 0);
    const double want = 3e38 * weight_at(w, static_cast<std::int64_t>(n), 0);
    EXPECT_NEAR(got.data[4 * 20 + n], want, std::abs(want) * 1e-6);
  }
}

}  // namespace
}  // namespace lathe
