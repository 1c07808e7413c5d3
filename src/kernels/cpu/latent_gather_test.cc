// Gathering and attending gives the bits of attending in place, in any workspace that is big
// enough.
#include "kernels/cpu/latent_gather.h"

#include <gtest/gtest.h>

#include "kernels/cpu/latent_test_util.h"

namespace lathe {
namespace {

using namespace latent_test;

const Requests kRequests = {{150, 3}, {0, 0}, {17, 1}, {64, 2}, {33, 0}, {1, 1}};

Outputs gathered(const Scene& s, std::size_t bytes) {
  std::vector<std::byte> workspace(bytes, std::byte{0xff});
  AttendArgs args = s.args;
  const std::int32_t v = args.problem.v_dim();
  Outputs o{{args.q.rows, args.problem.heads * v, kNaN}, {args.q.rows, args.problem.heads, kNaN}};
  args.out = o.out.mutable_view();
  args.lse = o.lse.mutable_view();
  const Result<void> done = cpu_gather_attend(args, workspace);
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return o;
}

class LatentGather : public ::testing::TestWithParam<LayoutKind> {
 protected:
  LatentGather() { s.args.execution = {&threads, nullptr, true}; }
  void expect_in_place_bits(std::size_t least) {
    const Outputs want = s.attend();
    for (const std::size_t bytes : {least, 2 * least, std::size_t{1} << 22}) {
      expect_equal(gathered(s, bytes), want);
    }
  }
  ThreadPool threads{2};
  Scene s{latent_layout(GetParam()), 16, 3, kRequests};
};

TEST_P(LatentGather, PageTables) {
  s.batch.entry(0, 1) = PageId(-1);
  s.batch.entry(2, 0) = PageId(1 << 27);
  s.batch.name_by_page(s.args.main);
  expect_in_place_bits(160 * (288 + 4) + 512);
}

TEST_P(LatentGather, Lists) {
  const Ints list = s.random_list(70);
  s.by_index(list);
  expect_in_place_bits(70 * (288 + 8) + 512);
}

TEST_P(LatentGather, WindowAndCompressedEntries) {
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.window = 20;
  expect_in_place_bits(20 * (288 + 8) + 512);
  s.args.problem.compress_ratio = 4;
  const Ints list = s.random_list(30);
  s.args.extra = s.args.main;
  s.args.extra.page_table = {};
  s.args.extra.table_width = 0;
  name_by_index(s.args.extra, list, 30);
  expect_in_place_bits(50 * (288 + 12) + 512);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LatentGather, ::testing::ValuesIn(kLatentKinds),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(LatentGatherErrors, AWorkspaceTooSmallNamesWhatIsEnough) {
  Scene s(latent_layout(LayoutKind::mla_fp8), 16, 3, kRequests);
  Matrix<float> out(s.batch.rows, 3 * 128, -7);
  s.args.out = out.mutable_view();
  std::vector<std::byte> small(1000);
  const Result<void> done = cpu_gather_attend(s.args, small);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::exhausted);
  EXPECT_EQ(done.error().field, "workspace");
  EXPECT_TRUE(std::ranges::all_of(out.data, [](float x) { return x == -7; }));
  const std::string wanted = done.error().wanted;  // "at least N bytes"
  std::vector<std::byte> enough(std::stoull(wanted.substr(wanted.find_first_of("0123456789"))));
  EXPECT_TRUE(cpu_gather_attend(s.args, enough).ok());
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
