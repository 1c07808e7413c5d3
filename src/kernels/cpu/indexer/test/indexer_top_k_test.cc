// The indexer's top-k on the CPU against a full sort: ties, NaN, tilings, memory, transforms.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attn/index_transform.h"
#include "base/test_scale.h"
#include "kernels/cpu/indexer/test/indexer_test_util.h"
#include "kernels/ref/indexer.h"

namespace lathe {
namespace {

using namespace indexer_test;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<std::int32_t> select(const std::vector<float>& scores, std::int64_t k) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(k), -77), lengths(1);
  const std::vector<std::int32_t> lens = {static_cast<std::int32_t>(scores.size())};
  const RowsView view{reinterpret_cast<const std::byte*>(scores.data()), DType::f32, 1,
                      std::ssize(scores), std::ssize(scores)};
  const auto done = index_select(view, lens, {}, k, out, lengths, {});
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  for (std::size_t i = static_cast<std::size_t>(lengths[0]); i < out.size(); ++i) {
    EXPECT_EQ(out[i], -1);
  }
  out.resize(static_cast<std::size_t>(lengths[0]));
  return out;
}

TEST(IndexSelect, EqualsAFullSort) {
  Rng rng(test_seed(1));
  for (int round = 0; round < 300 * test_scale(); ++round) {
    std::vector<float> scores(rng() % 3000);
    const auto kinds = 1 + rng() % 50;
    const bool special = rng() % 2 == 0;
    for (float& s : scores) {
      s = static_cast<float>(static_cast<int>(rng() % kinds) - 20);
      if (rng() % 5 == 0) s = -s;
      if (!special || rng() % 8 != 0) continue;
      const float odd[] = {kNaN, -kNaN, kInf, -kInf, 0.0f, -0.0f, 1e-42f, -1e-42f};
      s = odd[rng() % 8];
    }
    const auto n = static_cast<std::int64_t>(scores.size());
    for (std::int64_t k : {std::int64_t{1}, std::int64_t{2}, std::int64_t{64}, n - 1, n, n + 1,
                           std::int64_t{2048}}) {
      if (k < 1) continue;
      ASSERT_EQ(select(scores, k), ref_top_k(scores, k)) << n << " scores, k " << k;
    }
  }
}

TEST(IndexSelect, TiesGoToTheLowerPosition) {
  // More equal scores than any candidate buffer of 4096, with a few better ones after them.
  std::vector<float> scores(9000, 1.5f);
  scores[8000] = 2;
  scores[8999] = 3;
  const auto chosen = select(scores, 2048);
  ASSERT_EQ(chosen.size(), 2048u);
  for (std::int32_t i = 0; i < 2046; ++i) ASSERT_EQ(chosen[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(chosen[2046], 8000);
  EXPECT_EQ(chosen[2047], 8999);
  EXPECT_EQ(select({0.0f, -0.0f, 0.0f, -0.0f}, 2), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(select({-0.0f, 0.0f, -0.0f}, 1), (std::vector<std::int32_t>{0}));
}

TEST(IndexSelect, NaNIsNeverChosenAndInfinityIs) {
  EXPECT_TRUE(select({kNaN, kNaN, -kNaN}, 2).empty());
  EXPECT_EQ(select({kNaN, -kInf, kNaN, kNaN}, 2), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(select({-kInf, -5, kInf, -7}, 2), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(select({-3, -1, -2}, 2), (std::vector<std::int32_t>{1, 2}));
  EXPECT_TRUE(select({}, 2).empty());
  // No more keys than k: all of them, whatever they score.
  EXPECT_EQ(select({kNaN, 1}, 2), (std::vector<std::int32_t>{0, 1}));
}

// The expected result of index_top_k(): sorts the logits that its own kernel computes.
Selected by_sorting(const Case& c, std::int64_t k) {
  const auto logits = logits_of(c);
  Selected s{{}, {}};
  for (std::int64_t t = 0; t < c.rows(); ++t) {
    const auto len = static_cast<std::size_t>(c.lens[static_cast<std::size_t>(t)]);
    auto chosen = ref_top_k(logits.row(t).first(len), k);
    s.lengths.push_back(static_cast<std::int32_t>(chosen.size()));
    chosen.resize(static_cast<std::size_t>(k), -1);
    s.out.insert(s.out.end(), chosen.begin(), chosen.end());
  }
  return s;
}

TEST(IndexTopK, EqualsAFullSortOfTheLogits) {
  Rng rng(test_seed(2));
  for (int k : scaled({1, 2, 16, 64, 100})) {
    const std::vector<std::vector<int>> lens = {
        {0, 1, k - 1, k, k + 1}, {300, 301, 302}, {k + 1}, {150, k + 7}};
    for (std::int32_t page_size : {1, 16, 64}) {
      for (bool paged : {true, false}) {
        const Case c(rng, 16, 64, lens, page_size, paged);
        ASSERT_EQ(top_k_of(c, k), by_sorting(c, k)) << "k " << k << " page " << page_size;
      }
    }
  }
}

TEST(IndexTopK, NegativeLogitsAndMissingPages) {
  Rng rng(test_seed(3));
  Case c(rng, 16, 64, {{400, 401}, {90}}, 16);
  for (float& x : c.w) x = -std::fabs(x);
  ASSERT_EQ(top_k_of(c, 32), by_sorting(c, 32));
  for (std::size_t page = 1; page < 25; ++page) c.table[page] = PageId(page % 2 == 0 ? -1 : 99999);
  // Only 16 keys of page 0, and key 400 on page 25, have a logit.
  const Selected s = top_k_of(c, 32);
  EXPECT_EQ(s, by_sorting(c, 32));
  EXPECT_EQ(s.lengths[0], 16);
  EXPECT_EQ(s.lengths[1], 17);
}

TEST(IndexTopK, TiesAcrossTiles) {
  Rng rng(test_seed(4));
  Case c(rng, 4, 16, {{9000}}, 64);
  for (float& x : c.w) x = 0;  // every logit is 0, or -0
  for (std::int64_t splits : {1, 3}) {
    const Selected s = top_k_of(c, 2048, {.tile_keys = 100, .key_splits = splits});
    for (std::int32_t i = 0; i < 2048; ++i) ASSERT_EQ(s.out[static_cast<std::size_t>(i)], i);
  }
}

TEST(IndexTopK, SameForAnyTilingSplitAndThreads) {
  Rng rng(test_seed(5));
  std::vector<std::vector<int>> lens = {{3000}, {}, {1, 70, 900}};
  for (int i = 0; i < 20; ++i) lens[1].push_back(60 + 20 * i);
  const Case c(rng, 32, 32, lens, 16);
  const Selected wanted = by_sorting(c, 64);
  for (std::int64_t tile_keys : {1, 5, 16, 100, 10000}) {
    for (std::int64_t tile_rows : {1, 3, 64}) {
      for (std::int64_t splits : {1, 2, 7, 5000}) {
        ASSERT_EQ(wanted,
                  top_k_of(c, 64,
                           {.tile_keys = tile_keys, .tile_rows = tile_rows, .key_splits = splits}));
      }
    }
  }
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Scratch scratch;
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(wanted, top_k_of(c, 64, {}, {&pool, &scratch, i % 2 == 0}));
    }
    EXPECT_EQ(scratch.growths(), 1) << "allocates after warm-up";
  }
}

TEST(IndexTopK, KeepsItsBudget) {
  Rng rng(test_seed(6));
  std::vector<int> lens;
  for (int i = 0; i < 40; ++i) lens.push_back(3000 + i);
  const Case c(rng, 16, 32, {lens}, 64);
  const Selected wanted = by_sorting(c, 128);
  ThreadPool pool(2);
  // Logits of all rows would take 40 x 3040 x 4 = 486400 bytes.
  for (std::int64_t budget : {12000, 20000, 50000, 100000, 1000000}) {
    Scratch scratch;
    ASSERT_EQ(wanted, top_k_of(c, 128, {.budget_bytes = budget, .key_splits = 2},
                               {&pool, &scratch, false}));
    EXPECT_LE(scratch.size(), budget);
  }
  std::vector<std::int32_t> out(40 * 128, -77);
  const auto done = index_top_k(
      {c.query(), c.keys(), c.index_rows(), {}, 128, out, {}, {.budget_bytes = 5000}, {}});
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::exhausted);
  EXPECT_EQ(out[0], -77);
}

TEST(IndexTopK, IdentityRowsNeedNeitherLogitsNorMemory) {
  Rng rng(7);
  Case c(rng, 16, 32, {{0, 1, 63, 64}}, 16);
  for (e4m3& x : c.q) x.bits = 0x7f;  // every logit would be NaN
  Scratch scratch;
  const Selected s = top_k_of(c, 64, {.budget_bytes = 0}, {nullptr, &scratch, false});
  EXPECT_EQ(scratch.size(), 0);
  EXPECT_EQ(s.lengths, (std::vector<std::int32_t>{0, 1, 63, 64}));
  for (std::int32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(s.out[static_cast<std::size_t>(3 * 64 + i)], i);
    EXPECT_EQ(s.out[static_cast<std::size_t>(2 * 64 + i)], i < 63 ? i : -1);
  }
  EXPECT_TRUE(top_k_of(c, 0).out.empty());
  // All logits are NaN: rows with more than k keys select none.
  EXPECT_EQ(top_k_of(c, 63).lengths, (std::vector<std::int32_t>{0, 1, 63, 0}));
  EXPECT_TRUE(top_k_of(Case(rng, 16, 32, {}, 16), 8).out.empty());
}

TEST(IndexTopK, FusedTransformsEqualSeparateOnes) {
  Rng rng(test_seed(8));
  const Case c(rng, 16, 32, {{10, 200, 201}, {120}}, 16);
  const std::int64_t k = 32;
  const Selected local = top_k_of(c, k);
  const std::span positions(reinterpret_cast<const LocalPos*>(local.out.data()), local.out.size());

  // A target pool of another page size, with a missing page.
  const PoolShape pool{8, 1000};
  std::vector<PageId> table(2 * 30);
  for (PageId& page : table) page = PageId(static_cast<int>(rng() % 1000));
  table[4] = PageId(-1);
  IndexTarget target{IndexTargetUnit::slot, {table.data(), 2, 30}, pool, c.request, {}, 0};
  std::vector<Slot> slots(local.out.size());
  ASSERT_TRUE(local_to_slots({positions, k, c.lens}, c.request, target.table, pool, slots).ok());
  const Selected fused = top_k_of(c, k, {}, {}, target);
  EXPECT_EQ(fused.lengths, local.lengths);
  for (std::size_t i = 0; i < slots.size(); ++i) ASSERT_EQ(fused.out[i], slots[i].value);

  const std::vector<std::int32_t> offset = {7, 7, 7, 300};
  IndexTarget ragged{IndexTargetUnit::ragged_row, {}, {}, {}, offset, 400};
  std::vector<RaggedRow> rows(local.out.size());
  ASSERT_TRUE(local_to_ragged({positions, k, c.lens}, offset, 400, rows).ok());
  const Selected in_rows = top_k_of(c, k, {}, {}, ragged);
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(in_rows.out[i], rows[i].value);
}

TEST(IndexTopK, BadArgumentsAreNamed) {
  Rng rng(9);
  const Case c(rng, 16, 32, {{100}}, 16);
  std::vector<std::int32_t> out(8), lengths(2);
  const auto field = [&](IndexTarget target, std::int64_t k, std::span<std::int32_t> l) {
    const auto done = index_top_k({c.query(), c.keys(), c.index_rows(), target, k, out, l, {}, {}});
    return done.ok() ? std::string() : done.error().field;
  };
  EXPECT_EQ(field({}, 8, {}), "");
  EXPECT_EQ(field({}, 7, {}), "out");
  EXPECT_EQ(field({}, -1, {}), "k");
  EXPECT_EQ(field({}, 8, lengths), "lengths");
  EXPECT_EQ(field({.unit = IndexTargetUnit::ragged_row}, 8, {}), "target.row_offset");
  EXPECT_EQ(field({.unit = IndexTargetUnit::slot, .pool = {16, 4}}, 8, {}), "target.request");

  const ref_test::Matrix<float> logits(1, 100);
  const auto select = [&](const RowsView& view) {
    const auto done = index_select(view, c.lens, {}, 8, out, {}, {});
    return done.ok() ? std::string() : done.error().field;
  };
  RowsView view = logits.view();
  EXPECT_EQ(select(view), "");
  view.row_stride = 99;
  EXPECT_EQ(select(view), "logits");
  view = logits.view();
  view.data = nullptr;
  EXPECT_EQ(select(view), "logits");
  // Wild page ids: their slots would overflow an int64.
  IndexKeys keys = c.keys();
  keys.pool->pages = std::int64_t{1} << 60;
  const auto done = index_top_k({c.query(), keys, c.index_rows(), {}, 8, out, {}, {}, {}});
  EXPECT_EQ(done.error().field, "keys.pool.pages");
}

}  // namespace
}  // namespace lathe
