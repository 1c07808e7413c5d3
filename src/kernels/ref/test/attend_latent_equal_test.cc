// Different arguments for the same attention give the same numbers, on random caches.
#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "kernels/ref/attend_latent.h"
#include "kernels/ref/decode_token.h"
#include "kernels/ref/merge.h"
#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using namespace ref_test;

constexpr std::int64_t kList = 160;  // wider than every request below

// Lengths around the page size, several rows, and a request without rows.
std::vector<std::pair<int, int>> requests_around(int page) {
  return {{1, 1}, {std::max(1, page - 1), 1}, {page, 1}, {page + 1, 2},
          {0, 0}, {2 * page + 3, 3},          {7, 0}};
}

struct EqualScene {
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q;
  AttendArgs args;

  EqualScene(LayoutKind kind, int page, int heads, std::vector<std::pair<int, int>> requests)
      : rng(test_seed(static_cast<std::uint32_t>(page * 100 + heads))),
        pool(latent_layout(kind), page, 40),
        batch(pool, requests, rng),
        q(random_matrix(batch.rows, heads * 144, rng)) {
    args.problem = latent_problem(ProblemKind::dense_latent, heads);
    args.q = q.view();
    batch.put_into(args);
    args.main.pool = pool.view();
    if (pool.view().layout.scale_policy() == ScalePolicy::per_tensor) args.main.key_scale = 0.5f;
    batch.name_by_page(args.main);
  }
  EqualScene(const EqualScene&) = delete;
  void by_index(const std::vector<std::int32_t>& list) {
    args.problem.kind = ProblemKind::sparse_latent;
    args.main.page_table = {};
    args.main.table_width = 0;
    name_by_index(args.main, list, std::ssize(list) / batch.rows);
  }
  Outputs attend() const { return run(ref_attend_latent, args, args.problem.v_dim()); }
};

class LatentEqual : public ::testing::TestWithParam<LayoutPageHeads> {
 protected:
  EqualScene s{std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()),
               requests_around(std::get<1>(GetParam()))};
  int page = std::get<1>(GetParam());
};

TEST_P(LatentEqual, SparseWithAllPositionsIsDense) {
  const Outputs dense = s.attend();
  const auto list = s.batch.causal_list(page, kList);
  s.by_index(list);
  expect_equal(s.attend(), dense);
}

TEST_P(LatentEqual, OrderAndHolesDoNotMatter) {
  const Outputs dense = s.attend();
  auto list = s.batch.causal_list(page, kList);
  for (std::int64_t r = 0; r < s.batch.rows; ++r) {
    std::ranges::shuffle(std::span(list).subspan(static_cast<std::size_t>(r * kList), kList),
                         s.rng);
  }
  s.by_index(list);
  expect_near(s.attend(), dense);
}

TEST_P(LatentEqual, EntriesPastTheLengthDoNotMatter) {
  const Outputs dense = s.attend();
  auto list = s.batch.causal_list(page, kList);
  std::vector<std::int32_t> lengths;
  for (std::int64_t r = 0; r < s.batch.rows; ++r) {
    const auto row = std::span(list).subspan(static_cast<std::size_t>(r * kList), kList);
    lengths.push_back(static_cast<std::int32_t>(std::ranges::find(row, -1) - row.begin()));
    // Entries past the row's length: valid slots, some of them poisoned. Nothing may read them.
    for (auto i = static_cast<std::size_t>(lengths.back()); i < row.size(); ++i) {
      row[i] = static_cast<std::int32_t>(i) % static_cast<std::int32_t>(s.pool.view().slots());
    }
  }
  s.by_index(list);
  s.args.main.index_lengths = lengths;
  expect_equal(s.attend(), dense);
}

TEST_P(LatentEqual, CompactRowsEqualThePool) {
  const Outputs dense = s.attend();
  const auto list = s.batch.causal_list(page, kList);
  // Row i + 1 of the buffer is the token of list entry i; row 0 and the holes' rows stay NaN.
  Matrix<float> compact(std::ssize(list) + 1, 144, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::int32_t> rows(list.size(), -1);
  std::vector<double> token(144);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0) continue;
    rows[i] = static_cast<std::int32_t>(i) + 1;
    decode_token(s.pool.view(), Slot(list[i]), s.args.main.key_scale, 1, token);
    for (int e = 0; e < 144; ++e) {
      compact.at(rows[i], e) = static_cast<float>(token[static_cast<std::size_t>(e)]);
    }
  }
  s.by_index(rows);
  s.args.main.pool.reset();
  s.args.main.key_scale = 1;
  s.args.main.compact = compact.view();
  expect_equal(s.attend(), dense);
  // All formats here are exact in bf16: at most 8 significant bits, power-of-two scales.
  Matrix<bf16> narrow(compact.rows, 144);
  for (std::size_t i = 0; i < narrow.data.size(); ++i) narrow.data[i] = to_bf16(compact.data[i]);
  s.args.main.compact = narrow.view();
  expect_equal(s.attend(), dense);
}

TEST_P(LatentEqual, TwoHalvesMergeToTheWhole) {
  const Outputs dense = s.attend();
  const auto list = s.batch.causal_list(page, kList);
  std::vector<std::int32_t> part[2] = {list, list};
  for (std::size_t i = 0; i < list.size(); ++i) part[i % 3 == 0 ? 0 : 1][i] = -1;
  s.by_index(part[0]);
  Outputs a = s.attend();
  s.by_index(part[1]);
  const Outputs b = s.attend();
  const std::int64_t v = s.args.problem.v_dim();
  for (std::int64_t r = 0; r < s.batch.rows; ++r) {
    for (std::int64_t h = 0; h < s.args.problem.heads; ++h) {
      const std::span<double> out =
          std::span(a.out.data).subspan(static_cast<std::size_t>(r * a.out.cols + h * v), 128);
      const auto other = b.out.row(r).subspan(static_cast<std::size_t>(h * v), 128);
      double& lse = a.lse.at(r, h);
      lse = merge_states(out, lse, other, b.lse.row(r)[static_cast<std::size_t>(h)], out);
    }
  }
  expect_near(a, dense);
}

TEST_P(LatentEqual, TwoSourcesAreOneList) {
  // Splits the keys of each row between a main and an extra source; compares with one source.
  s.args.problem.kind = ProblemKind::window_compressed;
  const Outputs whole = s.attend();
  const auto list = s.batch.causal_list(page, kList);
  std::vector<std::int32_t> part[2] = {list, list};
  for (std::size_t i = 0; i < list.size(); ++i) part[i % 3 == 0 ? 0 : 1][i] = -1;
  s.by_index(part[0]);
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.compress_ratio = 4;
  s.args.extra = s.args.main;
  s.args.extra.indices = part[1];
  expect_near(s.attend(), whole);
}

TEST_P(LatentEqual, WindowByPageTableIsItsIndexList) {
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.window = 3;
  const Outputs by_page = s.attend();
  const auto list = s.batch.causal_list(page, kList, 3);
  s.by_index(list);
  s.args.problem.kind = ProblemKind::window_compressed;
  expect_equal(s.attend(), by_page);
}

INSTANTIATE_TEST_SUITE_P(All, LatentEqual,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(1, 2, 16, 64),
                                            ::testing::Values(1, 3, 8)),
                         layout_page_heads);

TEST(LatentChunks, PrefillInChunksEqualsOneShotToTheBit) {
  for (const int cut : {1, 5, 15, 16, 17, 36}) {
    EqualScene s(LayoutKind::mla_fp8_block, 16, 3, {{37, 37}});
    const Outputs whole = s.attend();
    for (const auto& [begin, end] : {std::pair{0, cut}, std::pair{cut, 37}}) {
      const std::int32_t indptr[] = {0, end - begin};
      const std::int32_t lens[] = {end};
      AttendArgs args = s.args;
      args.q.data = s.args.q.row(begin);
      args.q.rows = end - begin;
      args.q_indptr = indptr;
      args.kv_lens = lens;
      const Outputs part = run(ref_attend_latent, args, 128);
      for (std::int64_t r = 0; r < end - begin; ++r) {
        EXPECT_TRUE(std::ranges::equal(part.out.row(r), whole.out.row(begin + r)));
        EXPECT_TRUE(std::ranges::equal(part.lse.row(r), whole.lse.row(begin + r)));
      }
    }
  }
}

TEST(LatentHoles, APageThatIsAHoleHoldsNoKey) {
  EqualScene s(LayoutKind::mla_fp8, 2, 3, {{9, 2}, {3, 1}});
  s.batch.entry(0, 1) = PageId(-1);
  s.batch.entry(1, 0) = PageId(40);  // one past the pool
  s.batch.name_by_page(s.args.main);
  const Outputs by_page = s.attend();
  const auto list = s.batch.causal_list(2, 12);
  s.by_index(list);
  expect_equal(s.attend(), by_page);
}

}  // namespace
}  // namespace lathe
