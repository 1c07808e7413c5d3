// Quantized index queries on the CPU: codes, scales, folded weights and the Hadamard rotation.
#include "kernels/cpu/indexer/indexer_quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/test_scale.h"
#include "kernels/ref/test/test_util.h"
#include "layout/codec/codec.h"

namespace lathe {
namespace {

using ref_test::Matrix;
using ref_test::random_matrix;
using ref_test::Rng;

struct Quantized {
  std::vector<e4m3> codes;
  std::vector<float> scales, folded;
  bool operator==(const Quantized&) const = default;
};

Quantized quantize(const RowsView& q, const RowsView& w, std::int32_t heads, std::int32_t dim,
                   bool hadamard, ScalePolicy policy, const Execution& execution = {}) {
  const auto n = static_cast<std::size_t>(q.rows * heads);
  Quantized o{std::vector<e4m3>(n * static_cast<std::size_t>(dim)), std::vector<float>(n),
              std::vector<float>(n)};
  const auto done = index_quantize_q(
      {q, w, heads, dim, hadamard, policy, o.codes, o.scales, o.folded, execution});
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return o;
}

TEST(IndexQuantize, CodesScalesAndFoldedWeights) {
  Rng rng(test_seed(1));
  for (ScalePolicy policy : scaled({ScalePolicy::pow2_ceil, ScalePolicy::raw_f32})) {
    for (std::int32_t heads : {1, 3, 64}) {
      Matrix<float> q = random_matrix(5, heads * 128, rng);
      for (std::int64_t i = 0; i < 128; ++i) q.at(2, i) = 0;  // a zero tile
      q.at(3, 5) = ref_test::kInf;
      const Matrix<float> w = random_matrix(5, heads, rng);
      const Quantized o = quantize(q.view(), w.view(), heads, 128, false, policy);
      for (std::int64_t i = 0; i < 5 * heads; ++i) {
        float amax = 0;
        for (std::int64_t d = 0; d < 128; ++d) {
          const float x = std::fabs(q.at(i / heads, i % heads * 128 + d));
          if (std::isfinite(x)) amax = std::max(amax, x);
        }
        float scale = std::max(amax, kAmaxFloor) / 448.0f;
        if (policy == ScalePolicy::pow2_ceil) scale = pow2_ceil(scale);
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(o.scales[at], scale);
        const double folded = w.at(i / heads, i % heads) / std::sqrt(heads * 128.0) * scale;
        ASSERT_NEAR(o.folded[at], folded, 1e-6 * std::fabs(folded));
        for (std::int64_t d = 0; d < 128; ++d) {
          ASSERT_EQ(o.codes[at * 128 + static_cast<std::size_t>(d)],
                    to_e4m3(q.at(i / heads, i % heads * 128 + d) * (1 / scale)));
        }
      }
    }
  }
}

TEST(IndexQuantize, Bf16AndThreadsGiveTheSame) {
  Rng rng(2);
  const Matrix<float> f = random_matrix(30, 4 * 32, rng);
  Matrix<bf16> b(30, 4 * 32);
  Matrix<float> rounded(30, 4 * 32);
  for (std::size_t i = 0; i < f.data.size(); ++i) {
    b.data[i] = to_bf16(f.data[i]);
    rounded.data[i] = to_f32(b.data[i]);
  }
  const Matrix<float> w = random_matrix(30, 4, rng);
  const Quantized wanted = quantize(rounded.view(), w.view(), 4, 32, true, ScalePolicy::pow2_ceil);
  ThreadPool pool(3);
  Scratch scratch;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(wanted, quantize(b.view(), w.view(), 4, 32, true, ScalePolicy::pow2_ceil,
                               {&pool, &scratch, false}));
  }
  EXPECT_EQ(scratch.growths(), 1);
}

TEST(Hadamard, IsOrthonormalAndItsOwnInverse) {
  Rng rng(3);
  Matrix<float> x = random_matrix(4, 256, rng);
  const Matrix<float> before = x;
  ASSERT_TRUE(hadamard_rows(x.mutable_view(), 128).ok());
  for (std::int64_t t = 0; t < 4; ++t) {
    for (int i = 0; i < 128; i += 17) {
      double sum = 0;
      for (int j = 0; j < 128; ++j) {
        const int sign = __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1;
        sum += sign * double{before.at(t, 128 + j)};
      }
      ASSERT_NEAR(x.at(t, 128 + i), sum / std::sqrt(128.0), 1e-5);
    }
  }
  ASSERT_TRUE(hadamard_rows(x.mutable_view(), 128).ok());
  for (std::size_t i = 0; i < x.data.size(); ++i) ASSERT_NEAR(x.data[i], before.data[i], 1e-5);
  EXPECT_FALSE(hadamard_rows(x.mutable_view(), 96).ok());
}

TEST(Hadamard, QueriesAreRotatedBeforeTheyAreQuantised) {
  Rng rng(4);
  const Matrix<float> q = random_matrix(3, 2 * 128, rng);
  const Matrix<float> w = random_matrix(3, 2, rng);
  Matrix<float> rotated = q;
  ASSERT_TRUE(hadamard_rows(rotated.mutable_view(), 128).ok());
  EXPECT_EQ(quantize(q.view(), w.view(), 2, 128, true, ScalePolicy::pow2_ceil),
            quantize(rotated.view(), w.view(), 2, 128, false, ScalePolicy::pow2_ceil));
}

TEST(IndexQuantize, BadArgumentsAreNamed) {
  Rng rng(5);
  const Matrix<float> q = random_matrix(2, 96, rng), w = random_matrix(2, 2, rng);
  std::vector<e4m3> codes(2 * 96);
  std::vector<float> folded(4);
  IndexQuantize a{q.view(), w.view(), 2, 48, false, ScalePolicy::pow2_ceil, codes, {}, folded, {}};
  EXPECT_TRUE(index_quantize_q(a).ok());
  a.q.row_stride = 95;
  EXPECT_EQ(index_quantize_q(a).error().field, "q");
  a.q = q.view();
  a.weights.data = nullptr;
  EXPECT_EQ(index_quantize_q(a).error().field, "weights");
  a.weights = w.view();
  a.hadamard = true;
  EXPECT_EQ(index_quantize_q(a).error().field, "dim");
  a.hadamard = false;
  a.policy = ScalePolicy::ue8m0;
  EXPECT_EQ(index_quantize_q(a).error().field, "policy");
  a.policy = ScalePolicy::raw_f32;
  a.heads = 3;
  EXPECT_EQ(index_quantize_q(a).error().field, "q");
}

}  // namespace
}  // namespace lathe
