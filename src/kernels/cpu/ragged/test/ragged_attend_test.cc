// Kind `ragged` on the CPU against the oracle: dims, long contexts, holes, bits, SIMD targets.
#include "kernels/cpu/ragged/ragged_attend.h"

#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/ref/attend_ragged.h"

namespace lathe {
namespace {

using namespace cpu_test;

struct RaggedDimsOf {
  int nope = 128, rope = 16, k_nope = 24, v = 40;
};

struct RaggedScene {
  RaggedDimsOf dims;
  int heads;
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q, w_uk, w_uv;
  std::vector<float> sink;
  AttendArgs args;

  RaggedScene(LayoutKind kind, int page, int head_count,
              const std::vector<std::pair<int, int>>& requests, RaggedDimsOf d = {},
              std::uint32_t seed = test_seed(11))
      : dims(d),
        heads(head_count),
        rng(seed),
        pool(CacheLayout(kind, {.nope = d.nope, .rope = d.rope}), page,
             GqaScene::pages_for(requests, page)),
        batch(pool, requests, rng),
        q(random_matrix(batch.rows, heads * (d.k_nope + d.rope), rng)),
        w_uk(random_matrix(heads * d.k_nope, d.nope, rng)),
        w_uv(random_matrix(heads * d.v, d.nope, rng)) {
    const float shrink = 1 / std::sqrt(static_cast<float>(d.nope));
    for (Matrix<float>* m : {&w_uk, &w_uv}) {
      for (float& x : m->data) x *= shrink;
    }
    args.problem = latent_problem(ProblemKind::dense_latent, heads, d.nope, d.rope);
    args.problem.scale = 1 / std::sqrt(static_cast<float>(d.k_nope + d.rope));
    args.problem.qk_nope_head = d.k_nope;
    args.problem.v_head = d.v;
    args.q = q.view();
    args.expansion = {w_uk.data, w_uv.data};
    batch.put_into(args);
    args.main.pool = pool.view();
    if (kind == LayoutKind::mla_fp8) args.main.key_scale = 0.7f;
    batch.name_by_page(args.main);
  }
  RaggedScene(const RaggedScene&) = delete;
  Outputs attend() const { return run(cpu_attend_ragged, args, dims.v); }
  Outputs oracle() const { return run(ref_attend_ragged, args, dims.v); }
};

class CpuRagged : public ::testing::TestWithParam<LayoutPageHeads> {};

TEST_P(CpuRagged, EqualsTheOracle) {
  const auto& [kind, page, heads] = GetParam();
  for (int round = 0; round < test_scale(); ++round) {
    SCOPED_TRACE(round);
    RaggedScene s(kind, page, heads,
                  {{1, 1},
                   {std::max(1, page - 1), 1},
                   {page, page},
                   {page + 1, 2},
                   {0, 0},
                   {5, 0},
                   {300, 130}},
                  {}, test_seed(11 + static_cast<std::uint32_t>(round)));
    expect_close(s.attend(), s.oracle());
    s.args.problem.sink = true;
    s.sink.assign(static_cast<std::size_t>(heads), 1.5f);
    s.args.sink = s.sink;
    expect_close(s.attend(), s.oracle());
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuRagged,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(1, 16, 64), ::testing::Values(1, 3)),
                         layout_page_heads);

TEST(RaggedAttend, DimsOfDeepSeek) {
  RaggedScene s(LayoutKind::mla_fp8_block, 64, 2, {{260, 70}}, {512, 64, 128, 128});
  expect_close(s.attend(), s.oracle());
}

TEST(RaggedAttend, LongContext) {
  RaggedScene s(LayoutKind::mla_bf16, 64, 1, {{2047, 3}, {2048, 1}, {2049, 300}});
  expect_close(s.attend(), s.oracle());
}

TEST(RaggedAttend, HolesInThePageTable) {
  RaggedScene s(LayoutKind::mla_fp8, 16, 3, {{200, 200}, {16, 1}});
  s.batch.entry(0, 0) = PageId(-1);
  s.batch.entry(0, 5) = PageId(100000);
  s.batch.entry(1, 0) = PageId(-1);
  const Outputs o = s.attend();
  expect_close(o, s.oracle());
  EXPECT_EQ(o.lse.at(15, 2), -kInf);
  EXPECT_EQ(o.lse.at(200, 0), -kInf);
  EXPECT_EQ(o.out.at(200, 0), 0);
}

TEST(RaggedAttend, SparseUpToTopK) {
  RaggedScene s(LayoutKind::mla_bf16, 16, 3, {{20, 5}, {17, 1}});
  const Outputs dense = s.attend();
  s.args.problem.kind = ProblemKind::sparse_latent;
  s.args.problem.top_k = 20;
  expect_same_bits(s.attend(), dense);
  s.args.problem.top_k = 19;
  Matrix<double> out(6, 3 * s.dims.v, -7);
  s.args.out = out.mutable_view();
  EXPECT_FALSE(cpu_attend_ragged(s.args));
  EXPECT_EQ(out.data, std::vector<double>(out.data.size(), -7));
}

// Keys that only later rows see hold NaN; earlier rows keep their bits.
TEST(RaggedAttend, WhatARowDoesNotSeeCannotMatter) {
  RaggedScene s(LayoutKind::mla_bf16, 16, 1, {{100, 100}});
  const Outputs clean = s.attend();
  const ConstPoolView pool = s.pool.view();
  const Slot slot = slot_of(s.batch.entry(0, 3), 16, 2);  // position 50
  auto* at = const_cast<std::byte*>(pool.at(pool.layout.part(0), slot));
  std::fill(at, at + pool.layout.part(0).bytes(), std::byte{0xff});
  const Outputs dirty = s.attend();
  expect_same_bits(rows_of(dirty, 0, 50), rows_of(clean, 0, 50));
  for (int row = 50; row < 100; ++row) EXPECT_TRUE(std::isnan(dirty.out.at(row, 3))) << row;
}

TEST(RaggedAttend, BitsDependOnTheRequestAlone) {
  RaggedScene s(LayoutKind::mla_fp8_block, 16, 2, {{900, 500}});
  const Outputs whole = s.attend();
  for (const int count : {1, 2, 3, 16}) {
    ThreadPool threads(count);
    Scratch scratch;
    s.args.execution = {.threads = &threads, .scratch = &scratch};
    for (int i = 0; i < 3; ++i) expect_same_bits(s.attend(), whole);
    EXPECT_EQ(scratch.growths(), 1);
  }
  for (const auto& [first, count] :
       std::vector<std::pair<int, int>>{{0, 1}, {0, 100}, {100, 399}, {499, 1}, {37, 97}}) {
    AttendArgs args = s.args;
    const std::int32_t indptr[] = {0, count};
    const std::int32_t lens[] = {400 + first + count};
    args.q.data = s.args.q.row(first);
    args.q.rows = count;
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.execution = {};
    expect_same_bits(run(cpu_attend_ragged, args, s.dims.v), rows_of(whole, first, count));
  }
}

TEST(RaggedAttend, EverySimdTarget) {
  RaggedScene s(LayoutKind::mla_fp8_block, 16, 2, {{200, 40}, {65, 1}, {0, 0}});
  const Outputs wanted = s.oracle();
  on_every_target([&] { expect_close(s.attend(), wanted); });
}

}  // namespace
}  // namespace lathe
