#include "kernels/cpu/ragged_attend.h"

#include <gtest/gtest.h>

#include "kernels/cpu/gqa_test_util.h"
#include "kernels/ref/attend_ragged.h"

namespace lathe {
namespace {

using namespace cpu_test;

struct RaggedDimsOf {
  int nope = 128, rope = 16, k_nope = 24, v = 40;
};

struct Scene {
  RaggedDimsOf dims;
  int heads;
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q, w_uk, w_uv;
  std::vector<float> sink;
  AttendArgs args;

  Scene(LayoutKind kind, int page, int head_count, const std::vector<std::pair<int, int>>& requests,
        RaggedDimsOf d = {}, unsigned seed = 11)
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
  Scene(const Scene&) = delete;
  Outputs attend() const { return run(cpu_attend_ragged, args, dims.v); }
  Outputs oracle() const { return run(ref_attend_ragged, args, dims.v); }
};

class CpuRagged : public ::testing::TestWithParam<LayoutPageHeads> {};

TEST_P(CpuRagged, EqualsTheOracle) {
  const auto& [kind, page, heads] = GetParam();
  Scene s(kind, page, heads,
          {{1, 1},
           {std::max(1, page - 1), 1},
           {page, page},
           {page + 1, 2},
           {0, 0},
           {5, 0},
           {300, 130}});
  expect_close(s.attend(), s.oracle());
  s.args.problem.sink = true;
  s.sink.assign(static_cast<std::size_t>(heads), 1.5f);
  s.args.sink = s.sink;
  expect_close(s.attend(), s.oracle());
}

INSTANTIATE_TEST_SUITE_P(All, CpuRagged,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(1, 16, 64), ::testing::Values(1, 3)),
                         layout_page_heads);

TEST(RaggedAttend, DimsOfDeepSeek) {
  Scene s(LayoutKind::mla_fp8_block, 64, 2, {{260, 70}}, {512, 64, 128, 128});
  expect_close(s.attend(), s.oracle());
}

TEST(RaggedAttend, LongContext) {
  Scene s(LayoutKind::mla_bf16, 64, 1, {{2047, 3}, {2048, 1}, {2049, 300}});
  expect_close(s.attend(), s.oracle());
}

}  // namespace
}  // namespace lathe
