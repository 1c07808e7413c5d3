#include "kernels/ref/attend_gqa.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_scale.h"
#include "kernels/ref/decode_token.h"
#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using namespace ref_test;

struct GqaScene {
  Rng rng{test_seed(7)};
  TestPool pool;
  Batch batch;
  Matrix<float> q;
  AttendArgs args;

  GqaScene(LayoutKind kind, int page, int heads, int kv_heads,
           std::vector<std::pair<int, int>> requests)
      : pool(CacheLayout(kind, {.kv_heads = kv_heads, .head_dim = 16, .v_head_dim = 32}), page, 40),
        batch(pool, requests, rng),
        q(random_matrix(batch.rows, heads * 16, rng)) {
    AttentionProblem& p = args.problem;
    p.kind = ProblemKind::grouped_query;
    p.heads = heads;
    p.kv_heads = kv_heads;
    p.head_dim = 16;
    p.v_head_dim = 32;
    p.scale = 0.25f;
    args.q = q.view();
    batch.put_into(args);
    args.main.pool = pool.view();
    if (kind == LayoutKind::gqa_fp8) {
      args.main.key_scale = 0.5f;
      args.main.value_scale = 2;
    }
    batch.name_by_page(args.main);
  }
  GqaScene(const GqaScene&) = delete;
  void by_index(const std::vector<std::int32_t>& list) {
    args.main.page_table = {};
    args.main.table_width = 0;
    name_by_index(args.main, list, std::ssize(list) / batch.rows);
  }
  Outputs attend() const { return run(ref_attend_gqa, args, 32); }

  // Textbook attention, one head and token at a time, without the maximum subtracted.
  Outputs naive() {
    const AttentionProblem& p = args.problem;
    Outputs o{{batch.rows, p.heads * 32}, {batch.rows, p.heads}};
    const int page = pool.view().page_size;
    for (std::size_t r = 0; r < batch.kv_lens.size(); ++r) {
      for (int row = batch.q_indptr[r]; row < batch.q_indptr[r + 1]; ++row) {
        const int position = batch.kv_lens[r] - (batch.q_indptr[r + 1] - row);
        for (int h = 0; h < p.heads; ++h) {
          const int g = h * p.kv_heads / p.heads;
          double sum = 0;
          for (int t = 0; t <= position; ++t) {
            if (p.chunked ? t / p.window != position / p.window
                          : p.window > 0 && t <= position - p.window) {
              continue;
            }
            std::vector<double> token(static_cast<std::size_t>(p.kv_heads * 48));
            decode_token(pool.view(), slot_of(batch.entry(r, t / page), page, t % page),
                         args.main.key_scale, args.main.value_scale, token);
            double dot = 0;
            for (int e = 0; e < 16; ++e) {
              dot += double{q.at(row, h * 16 + e)} * token[static_cast<std::size_t>(g * 16 + e)];
            }
            const double weight = std::exp(0.25 * dot);
            sum += weight;
            for (int e = 0; e < 32; ++e) {
              o.out.at(row, h * 32 + e) +=
                  weight * token[static_cast<std::size_t>(p.kv_heads * 16 + g * 32 + e)];
            }
          }
          for (int e = 0; e < 32; ++e) o.out.at(row, h * 32 + e) /= sum;
          o.lse.at(row, h) = std::log(sum);
        }
      }
    }
    return o;
  }
};

TEST(AttendGqa, OneTokenByHand) {
  TestPool pool(
      CacheLayout(LayoutKind::gqa_bf16, {.kv_heads = 2, .head_dim = 16, .v_head_dim = 16}), 1, 1);
  // K of head 0, K of head 1, V of head 0, V of head 1.
  std::vector<float> row(64);
  row[0] = 3;
  row[16] = 5;
  row[32] = 7;
  row[48] = 11;
  pool.store(Slot(0), row);
  AttendArgs args;
  args.problem.kind = ProblemKind::grouped_query;
  args.problem.heads = 4;
  args.problem.kv_heads = 2;
  args.problem.head_dim = 16;
  args.problem.v_head_dim = 16;
  args.problem.scale = 0.5f;
  args.problem.sink = true;
  Matrix<float> q(1, 64);
  for (int h = 0; h < 4; ++h) q.at(0, h * 16) = static_cast<float>(h + 1);
  const std::int32_t indptr[] = {0, 1};
  const std::int32_t lens[] = {1};
  const PageId table[] = {PageId(0)};
  const float inf = std::numeric_limits<float>::infinity();
  const float sink[] = {-inf, 3, 7.5, inf};
  args.q = q.view();
  args.q_indptr = indptr;
  args.kv_lens = lens;
  args.sink = sink;
  args.main.pool = pool.view();
  args.main.page_table = table;
  args.main.table_width = 1;
  const Outputs o = run(ref_attend_gqa, args, 16);
  EXPECT_EQ(o.lse.data, (std::vector<double>{1.5, 3, 7.5, 10}));
  EXPECT_EQ(o.out.at(0, 0), 7);
  EXPECT_EQ(o.out.at(0, 16), 3.5);
  EXPECT_EQ(o.out.at(0, 32), 5.5);
  EXPECT_EQ(o.out.at(0, 48), 0);
}

class GqaEqual : public ::testing::TestWithParam<LayoutPageHeads> {
 protected:
  int page = std::get<1>(GetParam());
  int heads = std::get<2>(GetParam());
  // As many kv heads as query heads (group 1), but for 8 over 2 (group 4).
  GqaScene s{
      std::get<0>(GetParam()),
      page,
      heads,
      heads == 8 ? 2 : heads,
      {{1, 1}, {std::max(1, page - 1), 1}, {page, 1}, {page + 1, 2}, {0, 0}, {2 * page + 3, 3}}};
};

TEST_P(GqaEqual, TheTextbook) {
  expect_near(s.attend(), s.naive());
  for (const int window : {1, 3, 1000}) {
    s.args.problem.window = window;
    expect_near(s.attend(), s.naive());
  }
  s.args.problem.chunked = true;
  for (const int chunk : {1, 3, page, page + 1, 1000}) {
    s.args.problem.window = chunk;
    expect_near(s.attend(), s.naive());
  }
}

TEST_P(GqaEqual, IndexListIsThePageTable) {
  const Outputs by_page = s.attend();
  const auto list = s.batch.causal_list(page, 140);
  s.by_index(list);
  expect_equal(s.attend(), by_page);
}

TEST_P(GqaEqual, CompactRowsEqualThePool) {
  const Outputs by_page = s.attend();
  const auto list = s.batch.causal_list(page, 140);
  const std::int64_t width = s.pool.view().layout.row_elems();
  Matrix<float> compact(std::ssize(list), width, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::int32_t> rows(list.size(), -1);
  std::vector<double> token(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0) continue;
    rows[i] = static_cast<std::int32_t>(i);
    decode_token(s.pool.view(), Slot(list[i]), s.args.main.key_scale, s.args.main.value_scale,
                 token);
    for (std::size_t e = 0; e < token.size(); ++e) {
      compact.at(rows[i], static_cast<std::int64_t>(e)) = static_cast<float>(token[e]);
    }
  }
  s.by_index(rows);
  s.args.main.pool.reset();
  s.args.main.key_scale = 1;
  s.args.main.value_scale = 1;
  s.args.main.compact = compact.view();
  expect_equal(s.attend(), by_page);
}

INSTANTIATE_TEST_SUITE_P(
    All, GqaEqual,
    ::testing::Combine(::testing::Values(LayoutKind::gqa_bf16, LayoutKind::gqa_fp8),
                       ::testing::Values(1, 2, 16, 64), ::testing::Values(1, 3, 8)),
    layout_page_heads);

TEST(AttendGqa, RowWithoutATokenIsZero) {
  GqaScene s(LayoutKind::gqa_fp8, 2, 4, 2, {{3, 1}});
  const std::vector<std::int32_t> list{-1, 80, -3};
  s.by_index(list);
  const Outputs o = s.attend();
  EXPECT_EQ(o.out.data, std::vector<double>(128, 0.0));
  EXPECT_EQ(o.lse.data, std::vector<double>(4, -kInf));
}

}  // namespace
}  // namespace lathe
