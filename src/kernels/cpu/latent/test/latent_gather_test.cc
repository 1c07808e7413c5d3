// Gathering and then attending gives the same bits as attending in place, with any workspace that
// is large enough.
#include "kernels/cpu/latent/latent_gather.h"

#include <gtest/gtest.h>

#include "kernels/cpu/latent/latent_plan.h"
#include "kernels/cpu/latent/test/latent_test_util.h"

namespace lathe {
namespace {

using namespace latent_test;

const Requests kRequests = {{150, 3}, {0, 0}, {17, 1}, {64, 2}, {33, 0}, {1, 1}};

// rows: size of the workspace, which is NaN at first.
Outputs gathered(const Scene& s, std::int64_t rows, std::int64_t state_bytes = kLatentPartBytes) {
  std::vector<std::uint16_t> workspace(static_cast<std::size_t>(rows * s.args.problem.qk_dim()),
                                       0xffff);
  AttendArgs args = s.args;
  const std::int32_t v = args.problem.v_dim();
  Outputs o{{args.q.rows, args.problem.heads * v, kNaN}, {args.q.rows, args.problem.heads, kNaN}};
  args.out = o.out.mutable_view();
  args.lse = o.lse.mutable_view();
  const Result<void> done = cpu_gather_attend(args, workspace, state_bytes);
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return o;
}

class LatentGather : public ::testing::TestWithParam<LayoutKind> {
 protected:
  LatentGather() { s.args.execution = {&threads, nullptr, true}; }
  void expect_in_place_bits(std::int64_t least) {
    const Outputs want = s.attend();
    for (const std::int64_t rows : {least, 2 * least, std::int64_t{1} << 14}) {
      expect_equal(gathered(s, rows), want);
    }
  }
  ThreadPool threads{2};
  Scene s{latent_layout(GetParam()), 16, 3, kRequests};
};

TEST_P(LatentGather, PageTables) {
  s.batch.entry(0, 1) = PageId(-1);
  s.batch.entry(2, 0) = PageId(1 << 27);
  s.batch.name_by_page(s.args.main);
  expect_in_place_bits(160);
}

TEST_P(LatentGather, Lists) {
  const Ints list = s.random_list(70);
  s.by_index(list);
  expect_in_place_bits(70);
}

TEST_P(LatentGather, WindowAndCompressedEntries) {
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.window = 20;
  expect_in_place_bits(20);
  s.args.problem.compress_ratio = 4;
  const Ints list = s.random_list(30);
  s.args.extra = s.args.main;
  s.args.extra.page_table = {};
  s.args.extra.table_width = 0;
  name_by_index(s.args.extra, list, 30);
  expect_in_place_bits(50);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LatentGather, ::testing::ValuesIn(kLatentKinds),
                         [](const auto& test) { return std::string(name(test.param)); });

// Requests of up to 3.4 runs of the smallest workspace, with missing pages and pages that end
// between runs; with a sink, and more heads than fit a work tile.
TEST(LatentGather, RequestsLargerThanTheWorkspaceGoOnFromRunToRun) {
  for (const int heads : {3, 70}) {
    for (const int page : {16, 48}) {
      SCOPED_TRACE(heads * 1000 + page);
      const int rows = heads == 3 ? 90 : 2;
      Scene s(latent_layout(LayoutKind::mla_fp8_block), page, heads,
              {{3500, rows}, {5, 0}, {1024, 1}, {70, 3}, {2049, 2}, {1023, 1}});
      s.batch.entry(0, 0) = PageId(-1);
      s.batch.entry(0, 1024 / page) = PageId(1 << 27);
      s.batch.entry(0, 3499 / page) = PageId(-1);
      s.batch.name_by_page(s.args.main);
      std::vector<float> sink(static_cast<std::size_t>(heads), 0.5f);
      s.args.problem.sink = true;
      s.args.sink = sink;
      ThreadPool threads(2);
      s.args.execution = {&threads, nullptr, true};
      const Outputs want = s.attend();
      expect_f32_close(want, s.oracle());
      for (const std::int64_t room : {1024, 1500, 2048, 3583, 3600, 20000}) {
        expect_equal(gathered(s, room), want);
      }
      // States of 7 rows at a time, then of one row: the keys are gathered again for the others.
      expect_equal(gathered(s, 1024, 7 * heads * (128 * 4 + 8)), want);
      if (heads > 3) expect_equal(gathered(s, 1024, 0), want);
      s.args.execution.batch_invariant = false;
      expect_f32_close(gathered(s, 1024), want);
    }
  }
}

// The planner reserves memory for a request's keys, not for its whole pages.
TEST(LatentGather, PagesThatAreNotFullNeedNoRoom) {
  Scene s(latent_layout(LayoutKind::mla_fp8), 64, 3, {{70, 5}});
  s.args.execution.batch_invariant = true;
  expect_equal(gathered(s, 70), s.attend());
}

TEST(LatentGatherErrors, AWorkspaceTooSmallNamesWhatIsEnough) {
  Scene s(latent_layout(LayoutKind::mla_fp8), 16, 3, kRequests);
  Matrix<float> out(s.batch.rows, 3 * 128, -7);
  s.args.out = out.mutable_view();
  std::vector<std::uint16_t> small(500);
  const Result<void> done = cpu_gather_attend(s.args, small);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::exhausted);
  EXPECT_EQ(done.error().field, "workspace");
  EXPECT_TRUE(std::ranges::all_of(out.data, [](float x) { return x == -7; }));
  const std::string wanted = done.error().wanted;  // "at least N bytes"
  const auto bytes = std::stoull(wanted.substr(wanted.find_first_of("0123456789")));
  std::vector<std::uint16_t> enough(bytes / 2);
  EXPECT_TRUE(cpu_gather_attend(s.args, enough).ok());
  enough.pop_back();
  EXPECT_FALSE(cpu_gather_attend(s.args, enough).ok());
}

TEST(LatentGatherErrors, CompactRowsAreThereAlready) {
  Scene s(latent_layout(LayoutKind::mla_bf16), 16, 3, {{9, 1}});
  const Matrix<float> rows(9, 144, 1);
  const Ints list = {0, 1, 2};
  s.by_index(list);
  s.args.main.pool.reset();
  s.args.main.compact = rows.view();
  Matrix<float> out(1, 3 * 128, -7);
  s.args.out = out.mutable_view();
  const Result<void> done = cpu_gather_attend(s.args, {});
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "main.pool");
}

}  // namespace
}  // namespace lathe
