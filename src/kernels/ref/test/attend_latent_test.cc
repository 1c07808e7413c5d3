// Cases worked out by hand.
#include "kernels/ref/attend_latent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using namespace ref_test;

// A pool of bf16 rows of 16 nope and 16 rope elements, pages of 2, one head, scale 0.5.
class AttendLatent : public ::testing::Test {
 protected:
  AttendLatent() {
    args.problem = latent_problem(ProblemKind::dense_latent, 1, 16, 16);
    args.problem.scale = 0.5f;
    args.main.pool = pool.view();
    q.at(0, 0) = 2;
    q.at(0, 16) = 1;
    q.at(1, 0) = 2;
    q.at(1, 16) = 1;
    batch(1, {1});
  }
  // One request of `rows` rows, with keys on pages 3, 1, 2.
  void batch(std::int32_t rows, std::vector<std::int32_t> lens) {
    indptr = {0, rows};
    kv_lens = std::move(lens);
    args.q = q.view();
    args.q.rows = rows;
    args.q_indptr = indptr;
    args.kv_lens = kv_lens;
    args.main.page_table = table;
    args.main.table_width = 3;
  }
  void by_index(std::vector<std::int32_t> slots) {
    list = std::move(slots);
    args.main.page_table = {};
    args.main.table_width = 0;
    name_by_index(args.main, list, std::ssize(list) / args.q.rows);
  }
  Outputs attend() { return run(ref_attend_latent, args, args.problem.v_dim()); }

  TestPool pool{CacheLayout(LayoutKind::mla_bf16, {.nope = 16, .rope = 16}), 2, 4};
  Matrix<float> q{2, 32};
  std::vector<std::int32_t> indptr, kv_lens, list;
  std::vector<PageId> table{PageId(3), PageId(1), PageId(2)};
  AttendArgs args;
};

const std::vector<float> kThree = {3, 5};
const std::vector<float> kAlsoThree = {3, 9};

TEST_F(AttendLatent, OneKeyGivesItsLatentAndItsScore) {
  pool.store(Slot(6), {3, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, /*rope*/ 4, 8});
  const Outputs o = attend();
  EXPECT_EQ(o.lse.at(0, 0), 0.5 * (2 * 3 + 1 * 4));  // the rope counts in the score
  EXPECT_EQ(o.out.cols, 16);                         // and not in the value
  EXPECT_EQ(o.out.at(0, 0), 3);
  EXPECT_EQ(o.out.at(0, 1), 5);
  EXPECT_EQ(o.out.at(0, 2), 0);
  EXPECT_EQ(o.out.at(0, 15), -1);
}

TEST_F(AttendLatent, WindowCompressedReturnsTheRopePartToo) {
  args.problem.kind = ProblemKind::window_compressed;
  pool.store(Slot(6), {3, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /*rope*/ 4, 8});
  const Outputs o = attend();
  EXPECT_EQ(o.out.cols, 32);
  EXPECT_EQ(o.out.at(0, 16), 4);
  EXPECT_EQ(o.out.at(0, 17), 8);
}

TEST_F(AttendLatent, TwoEqualScoresGiveTheMeanAndLnTwo) {
  pool.store(Slot(6), kThree);
  pool.store(Slot(7), kAlsoThree);
  batch(1, {2});
  const Outputs o = attend();
  EXPECT_DOUBLE_EQ(o.lse.at(0, 0), 3 + std::log(2.0));
  EXPECT_EQ(o.out.at(0, 0), 3);
  EXPECT_EQ(o.out.at(0, 1), 7);
}

TEST_F(AttendLatent, DuplicatesCountAsOftenAsTheyAppear) {
  pool.store(Slot(6), kThree);
  pool.store(Slot(1), kAlsoThree);
  by_index({6, 1, 6, 6});
  const Outputs o = attend();
  EXPECT_DOUBLE_EQ(o.lse.at(0, 0), 3 + std::log(4.0));
  EXPECT_DOUBLE_EQ(o.out.at(0, 1), 6);
}

TEST_F(AttendLatent, SinkEqualToTheScoreHalvesAndStaysOutOfTheLse) {
  pool.store(Slot(6), kThree);
  args.problem.sink = true;
  const float equal[] = {3};  // the score, not the score before the scale
  args.sink = equal;
  const Outputs o = attend();
  EXPECT_EQ(o.lse.at(0, 0), 3);
  EXPECT_EQ(o.out.at(0, 1), 2.5);
}

TEST_F(AttendLatent, InfiniteSinks) {
  pool.store(Slot(6), kThree);
  args.problem.sink = true;
  const float none[] = {-std::numeric_limits<float>::infinity()};
  args.sink = none;
  EXPECT_EQ(attend().out.at(0, 1), 5);
  const float all[] = {std::numeric_limits<float>::infinity()};
  args.sink = all;
  const Outputs o = attend();
  EXPECT_EQ(o.out.at(0, 1), 0);
  EXPECT_EQ(o.lse.at(0, 0), 3);
  by_index({-1, -1});
  for (const auto& sink : {none, all}) {
    args.sink = std::span(sink, 1);
    EXPECT_EQ(attend().out.data, std::vector<double>(16, 0.0));
  }
}

TEST_F(AttendLatent, RowWithoutAKeyIsZeroAndMinusInfinity) {
  by_index({-1, 8, -7, 1 << 30});
  const Outputs o = attend();
  EXPECT_EQ(o.lse.at(0, 0), -kInf);
  EXPECT_EQ(o.out.data, std::vector<double>(16, 0.0));
}

TEST_F(AttendLatent, VerifyRowsAreCausalAmongThemselves) {
  pool.store(Slot(6), kThree);
  pool.store(Slot(7), kAlsoThree);
  batch(2, {2});
  const Outputs o = attend();
  EXPECT_EQ(o.out.at(0, 1), 5);
  EXPECT_EQ(o.lse.at(0, 0), 3);
  EXPECT_EQ(o.out.at(1, 1), 7);
  EXPECT_DOUBLE_EQ(o.lse.at(1, 0), 3 + std::log(2.0));
}

TEST_F(AttendLatent, WindowEdges) {
  args.problem.kind = ProblemKind::window_compressed;
  // Positions 0 to 3 with values 1, 2, 4, 8 and score 0.
  const std::int32_t slots[] = {6, 7, 2, 3};
  for (int i = 0; i < 4; ++i) pool.store(Slot(slots[i]), {0, static_cast<float>(1 << i)});
  batch(2, {4});
  const std::pair<int, std::pair<double, double>> means[] = {{1, {4, 8}},
                                                             {2, {3, 6}},
                                                             {3, {7.0 / 3, 14.0 / 3}},
                                                             {4, {7.0 / 3, 3.75}},
                                                             {128, {7.0 / 3, 3.75}}};
  for (const auto& [window, mean] : means) {
    args.problem.window = window;
    const Outputs o = attend();
    EXPECT_DOUBLE_EQ(o.out.at(0, 1), mean.first) << window;
    EXPECT_DOUBLE_EQ(o.out.at(1, 1), mean.second) << window;
  }
}

TEST_F(AttendLatent, NaNInAReferencedKeyIsData) {
  pool.store(Slot(6), kThree);
  batch(1, {2});  // slot 7 is still poisoned
  const Outputs o = attend();
  EXPECT_TRUE(std::isnan(o.lse.at(0, 0)));
  EXPECT_TRUE(std::isnan(o.out.at(0, 1)));
}

TEST_F(AttendLatent, E4m3QueryTakesItsScale) {
  pool.store(Slot(6), kThree);
  Matrix<e4m3> narrow(1, 32, e4m3{0});
  narrow.at(0, 0) = e4m3{0x38};  // 1
  args.q = narrow.view();
  args.q_scale = 4;
  EXPECT_EQ(attend().lse.at(0, 0), 0.5 * 4 * 3);
}

TEST_F(AttendLatent, Bf16Query) {
  pool.store(Slot(6), kThree);
  Matrix<bf16> narrow(1, 32, bf16{0});
  narrow.at(0, 1) = bf16{0x4040};  // 3
  args.q = narrow.view();
  EXPECT_EQ(attend().lse.at(0, 0), 0.5 * 3 * 5);
}

TEST_F(AttendLatent, OutputTypesAndAMissingLse) {
  pool.store(Slot(6), kThree);
  Matrix<bf16> out(1, 16, bf16{0xffff});
  Matrix<float> lse(1, 1, -1);
  args.out = out.mutable_view();
  args.lse = lse.mutable_view();
  ASSERT_TRUE(ref_attend_latent(args));
  EXPECT_EQ(to_f32(out.at(0, 1)), 5);
  EXPECT_EQ(lse.at(0, 0), 3);
  Matrix<float> wide(1, 16, -1);
  args.out = wide.mutable_view();
  args.lse = {};
  ASSERT_TRUE(ref_attend_latent(args));
  EXPECT_EQ(wide.at(0, 1), 5);
}

TEST_F(AttendLatent, ZeroRowsAndZeroLengths) {
  indptr = {0, 0, 0};
  kv_lens = {0, 3};
  table = {PageId(), PageId(), PageId(), PageId(0), PageId(1), PageId()};
  args.q.rows = 0;
  args.q.data = nullptr;
  args.q_indptr = indptr;
  args.kv_lens = kv_lens;
  args.main.page_table = table;
  EXPECT_TRUE(attend().out.data.empty());
  indptr = {0};
  args.q_indptr = indptr;
  args.kv_lens = {};
  args.main.page_table = {};
  EXPECT_TRUE(attend().out.data.empty());
}

}  // namespace
}  // namespace lathe
