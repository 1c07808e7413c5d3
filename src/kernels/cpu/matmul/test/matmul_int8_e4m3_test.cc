// GEMMs of e4m3 weights with x in 8-bit integers, against double precision with the same rounded
// numbers, and against exact weights and x within the bound of the rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/integers.h"
#include "base/test_scale.h"
#include "base/threads.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/matmul/matmul_int8.h"
#include "kernels/cpu/matmul/test/matmul_cases_test_util.h"

namespace lathe {
namespace {

enum class Scales { none, blocks, rows, tensor };
constexpr Scales kAllScales[] = {Scales::none, Scales::blocks, Scales::rows, Scales::tensor};

// What a group of 128 columns of an output holds.
enum class Codes { any, four_binades, subnormal, zeros, outlier };
constexpr Codes kAllCodes[] = {Codes::any, Codes::four_binades, Codes::subnormal, Codes::zeros,
                               Codes::outlier};

std::uint8_t random_code(std::mt19937& rng, Codes kind, bool first, unsigned exponent) {
  const auto sign = static_cast<std::uint8_t>(rng() % 2 << 7);
  const auto among = [&](unsigned from, unsigned count) {
    return static_cast<std::uint8_t>(sign | (from + rng() % count));
  };
  switch (kind) {
    case Codes::any:
      return among(0, 0x7f);  // no NaN
    case Codes::four_binades:
      return among(8 * exponent, exponent == 12 ? 31 : 32);
    case Codes::subnormal:
      return among(0, 8);
    case Codes::zeros:
      return sign;
    case Codes::outlier:
      return first ? among(0x78, 7) : among(0, 0x40);
  }
  return 0;
}

// Every group has codes of a random kind, or all of one.
WeightView random_e4m3(std::mt19937& rng, std::int64_t n, std::int64_t k, Scales kind,
                       GuardedMemory& memory, const Codes* only = nullptr) {
  WeightView w;
  w.dtype = DType::e4m3;
  w.rows = n;
  w.cols = k;
  std::byte* data = memory.take(n * k);
  w.data = data;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < k; c += kWeightBlock) {
      const Codes codes = only != nullptr ? *only : kAllCodes[rng() % std::size(kAllCodes)];
      const auto exponent = static_cast<unsigned>(1 + rng() % 12);
      const std::int64_t end = std::min(c + kWeightBlock, k);
      for (std::int64_t i = c; i < end; ++i) {
        data[r * k + i] = std::byte{random_code(rng, codes, i == c, exponent)};
      }
    }
  }
  if (kind == Scales::none) return w;
  w.scale_rows = kind != Scales::blocks;
  const std::int64_t count = w.scale_count();
  auto* scales = reinterpret_cast<float*>(memory.take(4 * count));
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (std::int64_t i = 0; i < count; ++i) {
    scales[i] = kind == Scales::tensor && i > 0 ? scales[0] : uniform(rng);
  }
  w.scales = scales;
  return w;
}

// Largest of |at(i)|, first <= i < end.
template <class At>
double most_of(std::int64_t first, std::int64_t end, const At& at) {
  double most = 0;
  for (std::int64_t i = first; i < end; ++i) most = std::max(most, std::abs(at(i)));
  return most;
}

double plain_code(const WeightView& w, std::int64_t n, std::int64_t k) {
  WeightView codes = w;
  codes.scales = nullptr;
  return weight_at(codes, n, k);
}

// The integers' value of a group, as the header of matmul_int8.h says.
double unit_of_group(const WeightView& w, std::int64_t n, std::int64_t first, std::int64_t end) {
  const double most = most_of(first, end, [&](std::int64_t k) { return plain_code(w, n, k); });
  return std::exp2(std::max(-6.0, most == 0 ? -6.0 : std::floor(std::log2(most))) - 6);
}

double scale_at(const WeightView& w, std::int64_t n, std::int64_t k) {
  if (w.scales == nullptr) return 1;
  if (w.scale_rows) return w.scales[n];
  return w.scales[n / kWeightBlock * weight_blocks(w.cols) + k / kWeightBlock];
}

// Checks a product of x, of whose columns the first of each group is the largest of the group.
// |got - want| has the roundings of the scales of x and of the weight, of each group's sum, of its
// product and of the factor; x's codes are never next to the middle of two (see below).
void expect_e4m3(const MatmulRows& x, const WeightView& w, const MatmulRows& got) {
  const double roundings = static_cast<double>(ceil_div(w.cols, kWeightBlock) + 6) * 0x1p-24;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const auto x_at = [&](std::int64_t k) {
      return double{x.data[static_cast<std::size_t>(t * w.cols + k)]};
    };
    for (std::int64_t n = 0; n < w.rows; ++n) {
      double want = 0, size = 0, exact = 0, lost = 0;
      for (std::int64_t first = 0; first < w.cols; first += kWeightBlock) {
        const std::int64_t end = std::min(first + kWeightBlock, w.cols);
        const double most = most_of(first, end, x_at);
        const double unit = unit_of_group(w, n, first, end);
        for (std::int64_t k = first; k < end; ++k) {
          const double scale = scale_at(w, n, k), code = plain_code(w, n, k);
          const double integer = std::nearbyint(code / unit);
          ASSERT_LE(std::abs(integer), 127);
          const double xs = std::nearbyint(x_at(k) * 127 / most) * most / 127;
          const double product = xs * integer * unit * scale;
          want += product;
          size += std::abs(product);
          exact += x_at(k) * code * scale;
          const double weight_lost = std::abs(code) >= 8 * unit ? 0 : unit / 2;
          lost += std::abs(scale) *
                  (std::abs(x_at(k)) * weight_lost + (std::abs(code) + weight_lost) * most / 254);
        }
      }
      const double y = got.data[static_cast<std::size_t>(t * w.rows + n)];
      ASSERT_NEAR(y, want, roundings * size)
          << "row " << t << " out " << n << " of " << w.rows << " x " << w.cols;
      ASSERT_NEAR(y, exact, lost + roundings * size)
          << "row " << t << " out " << n << " of " << w.rows << " x " << w.cols;
    }
  }
}

// Sixteenths up to 127 / 4, which the first column of each group has, so codes of 8-bit integers
// are quarters, and none is in the middle of two.
void fill_quarters(std::mt19937& rng, MatmulRows& x) {
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t k = 0; k < x.cols; ++k) {
      int sixteenths = k % kWeightBlock == 0 ? 508 : static_cast<int>(rng() % 1017) - 508;
      if (sixteenths % 4 == 2 || sixteenths % 4 == -2) ++sixteenths;
      x.data[static_cast<std::size_t>(t * x.cols + k)] = static_cast<float>(sixteenths) / 16;
    }
  }
}

class MatmulInt8E4m3 : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_int8_dot_weight(DType::e4m3)) GTEST_SKIP() << "not on this CPU";
  }
};

TEST_F(MatmulInt8E4m3, AgreesWithTheOracle) {
  std::mt19937 rng(test_seed(62));
  for (const std::int64_t k : {1, 15, 64, 65, 127, 128, 136, 255, 1000, 2304}) {
    for (const Scales scales : kAllScales) {
      const std::int64_t n = std::vector{1, 3, 5, 16, 63, 64, 65, 130, 200}[rng() % 9];
      const std::int64_t m = std::vector{1, 2, 3, 4, 5, 6, 7, 17}[rng() % 8];
      GuardedMemory memory;
      const WeightView w = random_e4m3(rng, n, k, scales, memory);
      MatmulRows x(m, k), got(m, n);
      fill_quarters(rng, x);
      const Product p{x.view(0, m), w, got.out(0, m)};
      Arena arena;
      cpu_matmul_int8({}, arena, {&p, 1});
      expect_e4m3(x, w, got);
      if (HasFatalFailure()) return;
    }
  }
}

// Rows of one block of columns are multiplied as with bf16.
TEST_F(MatmulInt8E4m3, NotForOneBlockOfColumns) {
  std::mt19937 rng(test_seed(67));
  const auto others = cpu_has_bf16_dot() ? MatmulPrecision::bf16 : MatmulPrecision::f32;
  for (const std::int64_t k : {16, 100, 128, 129}) {
    GuardedMemory memory;
    const WeightView w = random_e4m3(rng, 65, k, Scales::blocks, memory);
    MatmulRows x(3, k), got(3, 65), want(3, 65);
    std::normal_distribution<float> normal;
    for (float& v : x.data) v = normal(rng);
    cpu_multiply(MatmulPrecision::int8, {x.view(0, 3), w, got.out(0, 3)});
    cpu_multiply(others, {x.view(0, 3), w, want.out(0, 3)});
    EXPECT_EQ(got.data == want.data, k <= 128) << "k " << k;
  }
}

// Every kind of group alone, by panels and without.
TEST_F(MatmulInt8E4m3, KindsOfGroups) {
  std::mt19937 rng(test_seed(63));
  for (const Codes codes : kAllCodes) {
    for (const std::int64_t m : {1, 7}) {
      GuardedMemory memory;
      const WeightView w = random_e4m3(rng, 70, 260, Scales::blocks, memory, &codes);
      MatmulRows x(m, 260), got(m, 70);
      fill_quarters(rng, x);
      cpu_multiply(MatmulPrecision::int8, {x.view(0, m), w, got.out(0, m)});
      expect_e4m3(x, w, got);
      if (HasFatalFailure()) return;
      if (codes != Codes::zeros) continue;
      for (const float y : got.data) ASSERT_EQ(y, 0);
    }
  }
}

// Codes of four binades, x of whole numbers with the largest 127: nothing is rounded.
TEST_F(MatmulInt8E4m3, ExactWhereIntegersHoldAll) {
  std::mt19937 rng(test_seed(64));
  const Codes codes = Codes::four_binades;
  for (const std::int64_t m : {1, 4, 5, 9}) {
    GuardedMemory memory;
    const WeightView w = random_e4m3(rng, 66, 128, Scales::none, memory, &codes);
    MatmulRows x(m, 128), got(m, 66);
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      x.data[i] = i % 128 == 5 ? -127.0f : static_cast<float>(static_cast<int>(rng() % 255) - 127);
    }
    cpu_multiply(MatmulPrecision::int8, {x.view(0, m), w, got.out(0, m)});
    for (std::int64_t t = 0; t < m; ++t) {
      for (std::int64_t n = 0; n < 66; ++n) {
        double want = 0;
        for (std::int64_t k = 0; k < 128; ++k) {
          want += double{x.data[static_cast<std::size_t>(t * 128 + k)]} * weight_at(w, n, k);
        }
        ASSERT_EQ(got.data[static_cast<std::size_t>(t * 66 + n)], static_cast<float>(want));
      }
    }
  }
}

// Any number of rows, more than a task has among them, gives a row the same bits; with rows of x
// further apart, a bias, a sum with what is there, threads and int4 weights in the list.
TEST_F(MatmulInt8E4m3, ARowsBitsAreItsOwn) {
  std::mt19937 rng(test_seed(65));
  std::normal_distribution<float> normal;
  for (const auto& [k, scales] : {std::pair{384, Scales::blocks}, {256, Scales::rows}}) {
    GuardedMemory memory;
    const WeightView w = random_e4m3(rng, 150, k, scales, memory);
    WeightView u4;
    u4.dtype = DType::u4;
    u4.rows = 40;
    u4.cols = k;
    u4.data = memory.random_bytes(rng, 40 * k / 2, 0, 256);
    u4.groups = {memory.random_bytes(rng, 40 * k / 128 * 2, 0x3c, 2), DType::bf16, 128, nullptr};
    const std::int64_t m = 600;
    MatmulRows wide(m, k + 20), a(m, 150), b(m, 40);
    std::vector<float> bias(150);
    for (std::vector<float>* values : {&wide.data, &a.data, &bias}) {
      for (float& value : *values) value = normal(rng);
    }
    const MatmulRows before = a;
    const auto x = [&](std::int64_t first, std::int64_t rows) {
      RowsView view = wide.view(first, rows);
      view.cols = k;
      return view;
    };
    ThreadPool pool(3);
    Arena arena;
    const Product all[] = {{x(0, m), u4, b.out(0, m)},
                           {x(0, m), w, a.out(0, m), bias.data(), true}};
    cpu_matmul({.threads = &pool}, arena, MatmulPrecision::int8, all);
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 17, 100}) {
      const auto first = static_cast<std::int64_t>(rng() % static_cast<unsigned>(m - rows));
      MatmulRows some(rows, 150), packed(rows, 40);
      cpu_multiply(MatmulPrecision::int8, {x(first, rows), w, some.out(0, rows)});
      cpu_multiply(MatmulPrecision::int8, {x(first, rows), u4, packed.out(0, rows)});
      for (std::size_t i = 0; i < some.data.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(first * 150) + i;
        ASSERT_EQ(a.data[at], before.data[at] + (some.data[i] + bias[i % 150]))
            << "rows " << first << " + " << rows << ", out " << i % 150;
      }
      ASSERT_EQ(std::memcmp(b.data.data() + first * 40, packed.data.data(),
                            packed.data.size() * sizeof(float)),
                0);
    }
  }
}

// What is not finite stays in its row, and zeros and tiny values are zeros.
TEST_F(MatmulInt8E4m3, SpecialValuesOfX) {
  std::mt19937 rng(test_seed(66));
  GuardedMemory memory;
  const Codes codes = Codes::four_binades;
  const WeightView w = random_e4m3(rng, 20, 200, Scales::blocks, memory, &codes);
  for (const std::int64_t m : {4, 5}) {
    MatmulRows x(m, 200), got(m, 20);
    x.data[10] = std::numeric_limits<float>::quiet_NaN();
    x.data[200 + 199] = std::numeric_limits<float>::infinity();
    x.data[2 * 200 + 3] = 1e-38f;
    cpu_multiply(MatmulPrecision::int8, {x.view(0, m), w, got.out(0, m)});
    for (std::size_t n = 0; n < 20; ++n) {
      EXPECT_TRUE(std::isnan(got.data[n]));
      EXPECT_TRUE(std::isnan(got.data[20 + n]));
      for (std::int64_t t = 2; t < m; ++t)
        EXPECT_EQ(got.data[static_cast<std::size_t>(t) * 20 + n], 0);
    }
  }
}

}  // namespace
}  // namespace lathe
