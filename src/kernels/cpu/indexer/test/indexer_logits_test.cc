// The indexer's logits on the CPU against ref: values, NaN, bits for any tiling, bad arguments.
#include "layout/simd_targets.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_scale.h"
#include "hwy/targets.h"
#include "kernels/cpu/indexer/test/indexer_test_util.h"
#include "kernels/ref/indexer.h"

namespace lathe {
namespace {

using namespace indexer_test;

void expect_matches_reference(const Case& c) {
  const auto got = logits_of(c, {}, {}, 3);
  std::vector<double> wanted(got.data.size()), magnitude(got.data.size());
  ASSERT_TRUE(
      ref_index_logits(c.query(), c.keys(), c.index_rows(), got.cols, wanted, magnitude).ok());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::isinf(wanted[i]) || std::isnan(wanted[i])) {
      ASSERT_EQ(std::isnan(got.data[i]), std::isnan(wanted[i])) << i;
      ASSERT_EQ(std::isinf(got.data[i]), std::isinf(wanted[i])) << i;
      continue;
    }
    ASSERT_LE(std::fabs(got.data[i] - wanted[i]), 1e-5 * magnitude[i]) << i;
  }
}

TEST(IndexLogits, MatchTheReference) {
  Rng rng(test_seed(1));
  const std::vector<std::vector<int>> lens = {{0, 1, 2}, {70, 71, 72, 3}, {300}, {0}, {65, 64}};
  for (bool paged : scaled({true, false})) {
    for (std::int32_t page_size : {1, 16, 64}) {
      for (std::int32_t heads : {1, 7, 16, 32, 48, 64, 70, 128}) {
        expect_matches_reference(Case(rng, heads, 128, lens, page_size, paged));
      }
      for (std::int32_t dim : {16, 32, 64, 256}) {
        expect_matches_reference(Case(rng, 64, dim, lens, page_size, paged));
      }
    }
  }
}

TEST(IndexLogits, MatchTheReferenceOnEveryTarget) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    Rng rng(test_seed(6));
    for (std::int32_t heads : scaled({1, 24, 64})) {
      const Case c(rng, heads, 128, {{70, 71, 3}, {130}}, 16);
      expect_matches_reference(c);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(IndexLogits, NegativeWeightsGiveNegativeLogits) {
  Rng rng(test_seed(2));
  Case c(rng, 8, 128, {{200}}, 16);
  for (float& x : c.w) x = -std::fabs(x);
  expect_matches_reference(c);
  float least = 0;
  for (float x : logits_of(c).data) least = std::min(least, x);
  EXPECT_LT(least, 0);
}

TEST(IndexLogits, MissingPagesAndStoredNaNGiveNaN) {
  Rng rng(3);
  Case c(rng, 20, 128, {{100, 60}, {40}}, 16);
  c.table[1] = PageId(-1);
  c.table[3] = PageId(1 << 20);
  *c.key_bytes(0, 70) = std::byte{0xff};
  expect_matches_reference(c);
  const auto logits = logits_of(c);
  EXPECT_TRUE(std::isnan(logits.at(0, 16)));
  EXPECT_TRUE(std::isnan(logits.at(1, 31)));
  EXPECT_TRUE(std::isnan(logits.at(0, 63)));
  EXPECT_TRUE(std::isnan(logits.at(0, 70)));
  EXPECT_FALSE(std::isnan(logits.at(0, 32)));
  EXPECT_EQ(logits.at(1, 60), -INFINITY);
  c.request[2] = -1;
  EXPECT_TRUE(std::isnan(logits_of(c).at(2, 0)));
}

TEST(IndexLogits, BitEqualForAnyTilingAndThreads) {
  Rng rng(test_seed(4));
  std::vector<std::vector<int>> lens = {{5000}, {}, {1, 130, 900}};
  for (int i = 0; i < 20; ++i) lens[1].push_back(600 + i);
  const Case c(rng, 64, 128, lens, 64);
  const auto wanted = logits_of(c);
  const auto same = [&](const ref_test::Matrix<float>& m) {
    return std::memcmp(m.data.data(), wanted.data.data(), 4 * wanted.data.size()) == 0;
  };
  for (std::int64_t tile_keys : {1, 5, 16, 100, 10000}) {
    for (std::int64_t tile_rows : {1, 3, 8, 64}) {
      EXPECT_TRUE(same(logits_of(c, {.tile_keys = tile_keys, .tile_rows = tile_rows})));
    }
  }
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Scratch scratch;
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(same(logits_of(c, {}, {&pool, &scratch, false})));
    EXPECT_EQ(scratch.growths(), 1);
  }
  EXPECT_TRUE(same(logits_of(c, {.budget_bytes = 60000})));
}

TEST(IndexLogits, BadArgumentsAreNamed) {
  Rng rng(5);
  Case c(rng, 8, 128, {{40, 20}}, 16);
  const auto field = [&](std::int64_t cols = 40, IndexTiling tiling = {}) {
    ref_test::Matrix<float> out(c.rows(), cols);
    const auto done =
        index_logits({c.query(), c.keys(), c.index_rows(), out.mutable_view(), tiling, {}});
    return done.ok() ? std::string() : done.error().field;
  };
  EXPECT_EQ(field(), "");
  EXPECT_EQ(field(39), "logits");
  EXPECT_EQ(field(40, {.budget_bytes = 100}), "budget_bytes");
  const MutableRowsView nowhere{nullptr, DType::f32, 2, 40, 40};
  EXPECT_EQ(index_logits({c.query(), c.keys(), c.index_rows(), nowhere, {}, {}}).error().field,
            "logits");
  c.lens[1] = 49;
  EXPECT_EQ(field(60), "rows.lens[1]");
  c.lens[1] = -1;
  EXPECT_EQ(field(60), "rows.lens[1]");
  c.lens[1] = 1;
  c.request[0] = 1;
  EXPECT_EQ(field(), "rows.request[0]");
  c.request[0] = 0;
  c.w.pop_back();
  EXPECT_EQ(field(), "query.weights");
  c.w.push_back(0);
  c.dim = 64;
  EXPECT_EQ(field(), "query.codes");
  EXPECT_TRUE(logits_of(Case(rng, 8, 128, {}, 16)).data.empty());
}

}  // namespace
}  // namespace lathe
