#include "kernels/ref/attend_ragged.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_scale.h"
#include "kernels/ref/attend_latent.h"
#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using namespace ref_test;

constexpr int kNope = 128, kRope = 16, kKeyHead = 24, kValueHead = 40;

struct RaggedScene {
  Rng rng{test_seed(11)};
  TestPool pool;
  Batch batch;
  int heads;
  Matrix<float> q;  // [rows, heads * (24 + 16)]
  Matrix<float> w_uk, w_uv;
  AttendArgs args;

  RaggedScene(LayoutKind kind, int page, int head_count, std::vector<std::pair<int, int>> requests)
      : pool(latent_layout(kind), page, 40),
        batch(pool, requests, rng),
        heads(head_count),
        q(random_matrix(batch.rows, heads * (kKeyHead + kRope), rng)),
        w_uk(random_matrix(heads * kKeyHead, kNope, rng)),
        w_uv(random_matrix(heads * kValueHead, kNope, rng)) {
    // Sixteenths, so that the absorbed q below is exact in f32.
    for (Matrix<float>* m : {&q, &w_uk, &w_uv}) {
      for (float& x : m->data) x = std::round(4 * x) / 16;
    }
    args.problem = latent_problem(ProblemKind::dense_latent, heads);
    args.problem.qk_nope_head = kKeyHead;
    args.problem.v_head = kValueHead;
    args.q = q.view();
    args.expansion = {w_uk.data, w_uv.data};
    batch.put_into(args);
    args.main.pool = pool.view();
    batch.name_by_page(args.main);
  }
  RaggedScene(const RaggedScene&) = delete;
  Outputs attend() const { return run(ref_attend_ragged, args, kValueHead); }

  // Absorbed form: q' = [w_uk^T q_nope | q_rope], out = w_uv out'.
  Outputs absorbed() {
    Matrix<float> q_absorbed(batch.rows, heads * (kNope + kRope));
    for (std::int64_t r = 0; r < batch.rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        for (int c = 0; c < kNope; ++c) {
          double sum = 0;
          for (int d = 0; d < kKeyHead; ++d) {
            sum += double{w_uk.at(h * kKeyHead + d, c)} * q.at(r, h * (kKeyHead + kRope) + d);
          }
          q_absorbed.at(r, h * (kNope + kRope) + c) = static_cast<float>(sum);
          EXPECT_EQ(double{static_cast<float>(sum)}, sum) << "q must be exact in f32";
        }
        for (int c = 0; c < kRope; ++c) {
          q_absorbed.at(r, h * (kNope + kRope) + kNope + c) =
              q.at(r, h * (kKeyHead + kRope) + kKeyHead + c);
        }
      }
    }
    AttendArgs latent = args;
    latent.expansion = {};
    latent.q = q_absorbed.view();
    const Outputs compressed = run(ref_attend_latent, latent, kNope);
    Outputs o{{batch.rows, heads * kValueHead}, compressed.lse};
    for (std::int64_t r = 0; r < batch.rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        for (int v = 0; v < kValueHead; ++v) {
          for (int c = 0; c < kNope; ++c) {
            o.out.at(r, h * kValueHead + v) +=
                double{w_uv.at(h * kValueHead + v, c)} * compressed.out.at(r, h * kNope + c);
          }
        }
      }
    }
    return o;
  }
};

class RaggedEqual : public ::testing::TestWithParam<LayoutPageHeads> {};

TEST_P(RaggedEqual, TheAbsorbedForm) {
  const auto& [kind, page, heads] = GetParam();
  RaggedScene s(kind, page, heads,
                {{1, 1}, {std::max(1, page - 1), 1}, {page, page}, {page + 1, 2}, {0, 0}, {5, 0}});
  expect_near(s.attend(), s.absorbed());
  s.args.problem.sink = true;
  const std::vector<float> sink(static_cast<std::size_t>(heads), 1.5f);
  s.args.sink = sink;
  expect_near(s.attend(), s.absorbed());
}

INSTANTIATE_TEST_SUITE_P(All, RaggedEqual,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(1, 2, 16, 64),
                                            ::testing::Values(1, 3, 8)),
                         layout_page_heads);

TEST(AttendRagged, HolesInThePageTable) {
  RaggedScene s(LayoutKind::mla_bf16, 2, 3, {{9, 9}});
  s.batch.entry(0, 0) = PageId(-1);
  s.batch.entry(0, 2) = PageId(1000);
  s.batch.name_by_page(s.args.main);
  const Outputs o = s.attend();
  expect_near(o, s.absorbed());
  EXPECT_EQ(o.lse.at(1, 2), -kInf);  // positions 0 and 1 are on the hole
  EXPECT_EQ(o.out.at(1, 0), 0);
}

TEST(AttendRagged, SparseUpToTopK) {
  RaggedScene s(LayoutKind::mla_fp8, 16, 3, {{20, 5}, {17, 1}});
  const Outputs dense = s.attend();
  s.args.problem.kind = ProblemKind::sparse_latent;
  s.args.problem.top_k = 20;
  expect_equal(s.attend(), dense);
  s.args.problem.top_k = 19;
  Matrix<double> out(6, 3 * kValueHead, -7);
  s.args.out = out.mutable_view();
  const Result<void> refused = ref_attend_ragged(s.args);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "kv_lens[0]");
  EXPECT_EQ(refused.error().wanted, "a context of at most top_k = 19 keys");
  EXPECT_EQ(refused.error().offered, "a context of 20");
  EXPECT_EQ(out.data, std::vector<double>(out.data.size(), -7));
}

}  // namespace
}  // namespace lathe
