// The CPU's latent attention against the oracle: layouts, pages, heads, lengths, page tables and
// index lists. Unused slots are poisoned, and so are outputs before every run.
#include "kernels/cpu/latent/latent_attend.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "kernels/cpu/latent/test/latent_test_util.h"
#include "kernels/ref/decode_token.h"

namespace lathe {
namespace {

using namespace latent_test;

Requests around(int page) {
  return {{1, 1}, {std::max(1, page - 1), 1}, {page, 1}, {page + 1, 2},
          {0, 0}, {2 * page + 3, 3},          {7, 0},    {150, 9}};
}

class LatentLayouts : public ::testing::TestWithParam<LayoutPageHeads> {
 protected:
  int page = std::get<1>(GetParam());
  Scene s{latent_layout(std::get<0>(GetParam())), page, std::get<2>(GetParam()), around(page)};
};

TEST_P(LatentLayouts, Dense) { expect_oracle(s); }

TEST_P(LatentLayouts, SparseWithHolesWildIndicesAndDuplicates) {
  const Ints list = s.random_list(90);
  s.by_index(list);
  expect_oracle(s);
  Ints lengths;
  for (std::int64_t r = 0; r < s.batch.rows; ++r) {
    lengths.push_back(static_cast<std::int32_t>(s.rng() % 91));
  }
  s.args.main.index_lengths = lengths;
  expect_oracle(s);
}

TEST_P(LatentLayouts, WindowByPageTable) {
  s.args.problem.kind = ProblemKind::window_compressed;
  for (const int window : {1, 5, 64, 70, 1000}) {
    s.args.problem.window = window;
    expect_oracle(s);
  }
}

TEST_P(LatentLayouts, WindowAndCompressedEntries) {
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.window = 70;
  s.args.problem.compress_ratio = 4;
  s.args.problem.sink = true;
  std::vector<float> sink(static_cast<std::size_t>(s.args.problem.heads), 0.5f);
  s.args.sink = sink;
  TestPool other(s.pool.view().layout, 2, 40);
  Batch entries(other, {{80, 1}}, s.rng);
  s.args.extra.pool = other.view();
  s.args.extra.key_scale = s.args.main.key_scale;
  Ints list;
  for (std::int64_t i = 0; i < s.batch.rows * 33; ++i) {
    list.push_back(static_cast<std::int32_t>(s.rng() % 90) - 4);  // holes, and slots past the pool
  }
  name_by_index(s.args.extra, list, 33);
  expect_oracle(s);
  const Ints window = s.batch.causal_list(page, 160, 70);
  s.by_index(window, ProblemKind::window_compressed);
  expect_oracle(s);
}

// Entries by page table give the same result as a list of all entries that a row sees.
TEST_P(LatentLayouts, WindowAndEntriesByPageTable) {
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.window = 70;
  for (const int ratio : {1, 4, 128}) {
    s.args.problem.compress_ratio = ratio;
    s.args.extra = s.args.main;
    expect_oracle(s);
    const Outputs by_table = s.oracle();
    Ints list;
    for (std::size_t r = 0; r < s.batch.kv_lens.size(); ++r) {
      for (std::int32_t row = s.batch.q_indptr[r]; row < s.batch.q_indptr[r + 1]; ++row) {
        const std::int32_t end = s.batch.kv_lens[r] - (s.batch.q_indptr[r + 1] - row) + 1;
        for (std::int32_t j = 0; j < s.longest(); ++j) {
          const bool seen = j < std::max(0, end) / ratio;
          list.push_back(
              seen ? slot_of(s.batch.entry(r, j / s.page()), s.page(), j % s.page()).value : -1);
        }
      }
    }
    s.args.extra.page_table = {};
    s.args.extra.table_width = 0;
    name_by_index(s.args.extra, list, s.longest());
    expect_equal(s.oracle(), by_table);
    s.args.extra = {};
  }
}

TEST_P(LatentLayouts, CompactRows) {
  const Ints list = s.random_list(40);
  Matrix<float> compact(std::ssize(list), 144, std::numeric_limits<float>::quiet_NaN());
  Ints rows(list.size(), -1);
  std::vector<double> token(144);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= s.pool.view().slots()) continue;
    rows[i] = static_cast<std::int32_t>(i);
    decode_token(s.pool.view(), Slot(list[i]), s.args.main.key_scale, 1, token);
    for (int e = 0; e < 144; ++e)
      compact.at(rows[i], e) = static_cast<float>(token[static_cast<std::size_t>(e)]);
  }
  s.by_index(list);
  const Outputs in_place = s.attend();
  s.by_index(rows);
  s.args.main.pool.reset();
  s.args.main.key_scale = 1;
  s.args.main.compact = compact.view();
  expect_oracle(s);
  expect_equal(s.attend(), in_place);
  Matrix<bf16> narrow(compact.rows, 144);
  for (std::size_t i = 0; i < narrow.data.size(); ++i) narrow.data[i] = to_bf16(compact.data[i]);
  s.args.main.compact = narrow.view();
  expect_equal(s.attend(), in_place);
}

INSTANTIATE_TEST_SUITE_P(All, LatentLayouts,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(1, 16, 64),
                                            ::testing::Values(1, 3, 8)),
                         layout_page_heads);

// ---------------------------------------------------------------- published dimensions

TEST(LatentAttend, HeadCounts) {
  for (const int heads : {1, 2, 3, 4, 5, 8, 16, 63, 64, 65, 127, 128}) {
    SCOPED_TRACE(heads);
    Scene s(CacheLayout(LayoutKind::mla_fp8_block), 16, heads, {{5, 1}, {70, 3}});
    expect_oracle(s);
  }
}

TEST(LatentAttend, ContextLengths) {
  Scene s(CacheLayout(LayoutKind::mla_bf16), 64, 2,
          {{0, 0}, {1, 1}, {63, 1}, {64, 1}, {65, 1}, {2047, 1}, {2048, 1}, {2049, 2}, {5000, 1}});
  expect_oracle(s);
  ThreadPool threads(2);
  s.args.execution.threads = &threads;
  expect_oracle(s);
  s.args.execution.batch_invariant = true;
  expect_oracle(s);
}

TEST(LatentAttend, V4AtItsDimensions) {
  for (const int heads : {1, 16, 64}) {
    Scene s(CacheLayout(LayoutKind::v4_fp8), 128, heads, {{300, 2}, {40, 1}});
    s.args.problem.kind = ProblemKind::window_compressed;
    s.args.problem.window = 128;
    s.args.problem.compress_ratio = 4;
    const Ints list = s.random_list(200);
    s.args.extra = s.args.main;
    s.args.extra.page_table = {};
    s.args.extra.table_width = 0;
    name_by_index(s.args.extra, list, 200);
    expect_oracle(s);
  }
}

TEST(LatentAttend, OddDimensionsOfCompactRows) {
  Rng rng(5);
  for (const auto& [nope, rope] : {std::pair{1, 0}, {5, 2}, {16, 1}, {33, 30}, {100, 64}}) {
    const std::int64_t width = nope + rope;
    const Matrix<float> keys = random_matrix(70, width, rng);
    const Matrix<float> q = random_matrix(2, 3 * width, rng);
    Ints list;
    for (int i = 0; i < 140; ++i) list.push_back(i % 70);
    const Ints indptr = {0, 2}, lens = {70};
    AttendArgs args;
    args.problem = latent_problem(ProblemKind::sparse_latent, 3, nope, rope);
    args.q = q.view();
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.main.compact = keys.view();
    name_by_index(args.main, list, 70);
    expect_f32_close(run(cpu_attend_latent, args, nope), run(ref_attend_latent, args, nope));
  }
}

// Pages of both sources are a gigabyte apart, so offsets exceed an int32. Only the pages' own bytes
// are ever touched.
TEST(LatentAttend, PagesFarApart) {
  Scene s(latent_layout(LayoutKind::v4_fp8), 16, 5, {{150, 3}, {70, 1}});
  const Ints window = s.batch.causal_list(16, 64, 60), list = s.random_list(90);
  s.by_two_sources(window, 60, list);
  const Outputs want = s.attend();
  const ConstPoolView near = *s.args.main.pool;
  constexpr std::int64_t kStride = std::int64_t{1} << 30;
  const auto size = static_cast<std::size_t>(near.pages * kStride);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space for a pool of " << size << " bytes";
  auto* bytes = static_cast<std::byte*>(memory);
  for (std::int64_t p = 0; p < near.pages; ++p) {
    std::memcpy(bytes + p * kStride, near.data + p * near.page_stride,
                static_cast<std::size_t>(near.page_stride));
  }
  s.args.main.pool = s.args.extra.pool =
      ConstPoolView(bytes, near.layout, near.page_size, near.pages, kStride);
  expect_equal(s.attend(), want);
  munmap(memory, size);
}

// -------------------------------------------------------------- numbers that are not ordinary data

TEST(LatentAttend, Sinks) {
  Scene s(latent_layout(LayoutKind::mla_bf16), 16, 5, {{40, 2}, {3, 1}});
  s.args.problem.sink = true;
  const auto inf = std::numeric_limits<float>::infinity();
  const std::vector<float> sink = {-inf, inf, 0, 1e30f, -1e30f};
  s.args.sink = sink;
  expect_oracle(s);
  const Ints none(static_cast<std::size_t>(s.batch.rows * 4), -1);
  s.by_index(none);
  expect_equal(s.attend(), s.oracle());
}

TEST(LatentAttend, ARowWithoutAKeyIsZeroAndMinusInfinity) {
  Scene s(latent_layout(LayoutKind::mla_fp8), 16, 3, {{40, 3}});
  Ints list(3 * 70, -1);
  list[75] = 1 << 30;
  list[140] = slot_of(s.batch.entry(0, 0), 16, 3).value;
  s.by_index(list);
  const Outputs o = s.attend();
  for (int h = 0; h < 3; ++h) {
    EXPECT_EQ(o.lse.at(0, h), -kInf);
    EXPECT_EQ(o.lse.at(1, h), -kInf);
    EXPECT_GT(o.lse.at(2, h), -kInf);
  }
  EXPECT_TRUE(std::ranges::all_of(o.out.row(1), [](double x) { return x == 0; }));
  expect_f32_close(o, s.oracle());
}

TEST(LatentAttend, NothingToDo) {
  Scene s(latent_layout(LayoutKind::mla_bf16), 16, 3, {{0, 0}, {9, 0}});
  EXPECT_TRUE(s.attend().out.data.empty());
  Scene none(latent_layout(LayoutKind::mla_bf16), 16, 3, {});
  EXPECT_TRUE(none.attend().out.data.empty());
}

TEST(LatentAttend, PagesThatAreHolesHoldNoKey) {
  Scene s(latent_layout(LayoutKind::mla_fp8_block), 16, 3, {{150, 20}, {40, 1}});
  s.batch.entry(0, 1) = PageId(-1);
  s.batch.entry(0, 8) = PageId(1 << 27);
  s.batch.entry(1, 0) = PageId(static_cast<std::int32_t>(s.pool.view().pages));
  s.batch.name_by_page(s.args.main);
  expect_oracle(s);
  s.args.problem.kind = ProblemKind::window_compressed;
  s.args.problem.window = 20;
  expect_oracle(s);
}

// A NaN key makes NaN of the rows that see it, and of no other row, even in the same block of rows.
TEST(LatentAttend, NaNReachesTheRowsThatSeeItAndNoOther) {
  for (const int heads : {1, 3, 4, 16}) {
    Scene s(latent_layout(LayoutKind::mla_bf16), 16, heads, {{75, 12}, {30, 4}});
    std::vector<float> row(144, 1.0f);
    row[3] = std::numeric_limits<float>::quiet_NaN();
    s.pool.store(slot_of(s.batch.entry(0, 4), 16, 68 % 16), row);
    const Outputs got = s.attend();
    const Outputs want = s.oracle();
    for (std::size_t i = 0; i < want.out.data.size(); ++i) {
      ASSERT_EQ(std::isnan(got.out.data[i]), std::isnan(want.out.data[i])) << heads << ' ' << i;
      if (!std::isnan(want.out.data[i])) {
        ASSERT_NEAR(got.out.data[i], want.out.data[i], 2e-5);
      }
    }
    for (std::size_t i = 0; i < want.lse.data.size(); ++i) {
      ASSERT_EQ(std::isnan(got.lse.data[i]), std::isnan(want.lse.data[i])) << heads << ' ' << i;
    }
    EXPECT_TRUE(std::isnan(got.out.at(11, 0)));
    EXPECT_FALSE(std::isnan(got.out.at(0, 0)));
  }
}

TEST(LatentAttend, ScoresOfMinusInfinityCountForNothing) {
  for (const int blocked : {1, 70, 75}) {  // of 75 keys
    Scene s(latent_layout(LayoutKind::mla_bf16), 16, 3, {{75, 1}});
    std::vector<float> row(144, 1.0f);
    for (int i = 0; i < 75; ++i) {
      row[0] =
          i < blocked ? 1.0f : 0x1p-130f;  // times -1e38 a score of -1e38 or of next to nothing
      s.pool.store(slot_of(s.batch.entry(0, i / 16), 16, i % 16), row);
    }
    for (float& x : s.q.data) x = 0;
    for (int h = 0; h < 3; ++h) s.q.at(0, h * 144) = -std::numeric_limits<float>::infinity();
    if (blocked == 75) {
      const Outputs o = s.attend();
      expect_equal(o, s.oracle());
      EXPECT_EQ(o.lse.at(0, 0), -kInf);
      EXPECT_EQ(o.out.at(0, 5), 0);
    }
    for (int h = 0; h < 3; ++h) s.q.at(0, h * 144) = -1e38f;
    expect_f32_close(s.attend(), s.oracle());
  }
}

TEST(LatentAttend, ScoresFarApartNeitherOverflowNorVanish) {
  Scene s(latent_layout(LayoutKind::mla_bf16), 16, 4, {{200, 2}});
  for (float& x : s.q.data) x *= 300;
  const Outputs got = s.attend();
  const Outputs want = s.oracle();
  expect_near(got, want, 2e-3);  // scores are in the thousands: their rounding is an error of P
}

// ---------------------------------------------------------------- number formats

TEST(LatentAttend, QueryFormats) {
  Scene s(CacheLayout(LayoutKind::mla_fp8), 64, 3, {{100, 2}});
  Matrix<bf16> wide(s.q.rows, s.q.cols);
  Matrix<e4m3> narrow(s.q.rows, s.q.cols);
  for (std::size_t i = 0; i < s.q.data.size(); ++i) {
    wide.data[i] = to_bf16(s.q.data[i]);
    narrow.data[i] = to_e4m3(s.q.data[i] * 4);
  }
  s.args.q = wide.view();
  expect_oracle(s);
  s.args.q = narrow.view();
  s.args.q_scale = 0.3f;
  expect_oracle(s);
}

TEST(LatentAttend, OutputFormatsStridesAndAMissingLse) {
  Scene s(latent_layout(LayoutKind::mla_bf16), 16, 3, {{50, 2}, {9, 1}});
  const Outputs want = s.attend();
  const std::int64_t width = 3 * 128;
  Matrix<bf16> narrow(3, width + 5, bf16{0xffff});
  Matrix<float> lse(3, 7, -5);
  s.args.out = narrow.mutable_view();
  s.args.out.cols = width;
  s.args.lse = lse.mutable_view();
  s.args.lse.cols = 3;
  ASSERT_TRUE(cpu_attend_latent(s.args));
  Matrix<float> plain(3, width, -1);
  s.args.out = plain.mutable_view();
  s.args.lse = {};
  ASSERT_TRUE(cpu_attend_latent(s.args));
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      ASSERT_EQ(double{plain.at(r, c)}, want.out.at(r, c));
      ASSERT_EQ(narrow.at(r, c), to_bf16(plain.at(r, c)));
    }
    for (std::int64_t c = width; c < width + 5; ++c) ASSERT_EQ(narrow.at(r, c).bits, 0xffff);
    for (int h = 0; h < 3; ++h) ASSERT_EQ(lse.at(r, h), static_cast<float>(want.lse.at(r, h)));
    for (int h = 3; h < 7; ++h) ASSERT_EQ(lse.at(r, h), -5);
  }
}

TEST(LatentAttend, RefusesWhatTheOracleAndTheCodecsRefuse) {
  Scene s(latent_layout(LayoutKind::mla_fp8), 16, 3, {{50, 2}});
  Matrix<float> out(2, 3 * 128, -7);
  s.args.out = out.mutable_view();
  s.args.main.key_scale = 0x1p-127f;
  const Result<void> small = cpu_attend_latent(s.args);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().field, "main.key_scale");
  s.args.main.key_scale = 1;
  s.args.problem.kind = ProblemKind::grouped_query;
  EXPECT_EQ(cpu_attend_latent(s.args).error().field, "problem.kind");
  EXPECT_TRUE(std::ranges::all_of(out.data, [](float x) { return x == -7; }));
}

}  // namespace
}  // namespace lathe
