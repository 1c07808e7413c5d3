// Equal bits for repeated calls, any number of threads, chunks and batches; and scratch that stops
// growing.
#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "kernels/cpu/grouped_query/gqa_attend.h"
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/ref/attend_gqa.h"

namespace lathe {
namespace {

using namespace cpu_test;

// Attends for rows first .. first + count - 1 of the scene's only request, as a chunk of a prefill
// or as decode steps: later keys do not exist yet.
Outputs attend_chunk(GqaScene& s, std::int64_t first, std::int64_t count) {
  AttendArgs args = s.args;
  const std::int32_t before = s.batch.kv_lens[0] - static_cast<std::int32_t>(s.batch.rows);
  const std::int32_t indptr[] = {0, static_cast<std::int32_t>(count)};
  const std::int32_t lens[] = {before + static_cast<std::int32_t>(first + count)};
  args.q.data = s.args.q.row(first);
  args.q.rows = count;
  args.q_indptr = indptr;
  args.kv_lens = lens;
  return run(cpu_attend_gqa, args, s.dims.v_dim);
}

class GqaBits : public ::testing::TestWithParam<LayoutKind> {};

TEST_P(GqaBits, RepeatsAreEqual) {
  GqaScene s({GetParam(), 64, 4, 2, 64, 64}, {{3000, 1}, {77, 30}, {1500, 2}});
  ThreadPool threads(3);
  Scratch scratch;
  for (const bool invariant : {false, true}) {
    s.args.execution = {&threads, &scratch, invariant};
    const Outputs first = attend(s);
    for (int i = 0; i < 20; ++i) expect_same_bits(attend(s), first);
  }
}

TEST_P(GqaBits, LayersShareASchedule) {
  using Requests = std::vector<std::pair<int, int>>;
  for (const bool invariant : {false, true}) {
    Schedule schedule(kHostMemory);
    // The second step is smaller: data left by the first must not matter.
    for (const Requests& requests :
         {Requests{{3000, 1}, {77, 30}, {1500, 2}, {0, 0}}, Requests{{900, 2}, {70, 1}}}) {
      for (const int window : {0, 700}) {
        GqaScene s({GetParam(), 64, 8, 2, 64, 64}, requests);
        ThreadPool threads(3);
        Scratch scratch;
        s.args.problem.window = window;
        s.args.execution = {&threads, &scratch, invariant};
        prepare(cpu_prepare_gqa, s.args, schedule);
        for (int layer = 0; layer < 2; ++layer) {
          s.q = random_matrix(s.batch.rows, s.q.cols, s.rng);
          s.args.q = s.q.view();
          s.args.schedule = nullptr;
          const Outputs alone = attend(s);
          s.args.schedule = &schedule;
          const Outputs shared = attend(s);
          expect_same_bits(shared, alone);
          expect_close(shared, run(ref_attend_gqa, s.args, s.dims.v_dim));
        }
      }
    }
  }
}

TEST_P(GqaBits, ThreadsDoNotMatterWhenInvariant) {
  GqaScene s({GetParam(), 64, 8, 2, 64, 64}, {{5000, 1}, {77, 30}, {2100, 2}, {0, 0}});
  s.args.execution.batch_invariant = true;
  const Outputs alone = attend(s);
  for (const int window : {0, 1500}) {
    s.args.problem.window = window;
    s.args.execution.threads = nullptr;
    const Outputs one = attend(s);
    if (window == 0) expect_same_bits(one, alone);
    for (const int count : {1, 2, 3, 8, 16}) {
      ThreadPool threads(count);
      s.args.execution.threads = &threads;
      expect_same_bits(attend(s), one);
    }
  }
}

TEST_P(GqaBits, ChunksEqualOneShotWhenInvariant) {
  for (const int window : {0, 100, 1300}) {
    GqaScene s({GetParam(), 16, 4, 2, 64, 64}, {{2500, 400}});
    s.args.problem.window = window;
    ThreadPool threads(2);
    s.args.execution = {.threads = &threads, .batch_invariant = true};
    const Outputs whole = attend(s);
    for (const auto& [first, count] : std::vector<std::pair<int, int>>{
             {0, 1}, {0, 64}, {64, 200}, {264, 136}, {399, 1}, {7, 5}}) {
      expect_same_bits(attend_chunk(s, first, count), rows_of(whole, first, count));
    }
  }
}

TEST_P(GqaBits, CompanyDoesNotMatterWhenInvariant) {
  GqaScene s({GetParam(), 16, 4, 2, 64, 64}, {{2500, 1}, {60, 60}, {1200, 3}});
  ThreadPool threads(2);
  s.args.execution = {.threads = &threads, .batch_invariant = true};
  const Outputs together = attend(s);
  std::int64_t row = 0;
  for (std::size_t r = 0; r < 3; ++r) {
    AttendArgs args = s.args;
    const std::int32_t rows = s.batch.q_indptr[r + 1] - s.batch.q_indptr[r];
    const std::int32_t indptr[] = {0, rows};
    args.q.data = s.args.q.row(row);
    args.q.rows = rows;
    args.q_indptr = indptr;
    args.kv_lens = s.args.kv_lens.subspan(r, 1);
    const auto width = static_cast<std::size_t>(s.batch.width);
    args.main.page_table = s.args.main.page_table.subspan(r * width, width);
    expect_same_bits(run(cpu_attend_gqa, args, 64), rows_of(together, row, rows));
    row += rows;
  }
}

TEST_P(GqaBits, ScratchSettlesAfterTheFirstCall) {
  GqaScene s({GetParam(), 64, 4, 2, 64, 64}, {{3000, 1}, {77, 30}, {1500, 2}});
  ThreadPool threads(4);
  for (const bool invariant : {false, true}) {
    Scratch scratch;
    s.args.execution = {&threads, &scratch, invariant};
    attend(s);
    const std::int64_t growths = scratch.growths();
    EXPECT_LE(growths, 2);
    for (int i = 0; i < 5; ++i) attend(s);
    EXPECT_EQ(scratch.growths(), growths);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GqaBits, ::testing::Values(LayoutKind::gqa_bf16, LayoutKind::gqa_fp8),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(GqaAttend, RandomScenes) {
  Rng rng(test_seed(2024));
  const auto pick = [&](std::vector<int> of) { return of[rng() % of.size()]; };
  for (int round = 0; round < 60 * test_scale(); ++round) {
    const int kv_heads = pick({1, 2, 3, 5});
    GqaDims dims{pick({0, 1}) == 0 ? LayoutKind::gqa_bf16 : LayoutKind::gqa_fp8,
                 pick({1, 5, 16, 32, 64, 128}),
                 kv_heads * pick({1, 2, 3, 5, 7, 8}),
                 kv_heads,
                 16 * pick({1, 4, 5, 7}),
                 16 * pick({1, 2, 3, 6, 7})};
    std::vector<std::pair<int, int>> requests;
    for (int r = pick({1, 2, 5}); r > 0; --r) {
      const int keys = pick({0, 1, 15, 64, 65, 127, 200, 300});
      requests.emplace_back(keys, std::min(keys, pick({0, 1, 1, 2, 7, 40})));
    }
    GqaScene s(dims, requests, test_seed(static_cast<unsigned>(round)));
    s.args.problem.window = pick({0, 0, 1, 17, 64, 100});
    s.args.problem.chunked = s.args.problem.window > 0 && pick({0, 1}) == 1;
    if (pick({0, 1}) == 1)
      s.add_sink(std::vector<float>(static_cast<std::size_t>(dims.heads), 0.5f));
    for (PageId& page : s.batch.table) {
      if (pick({0, 0, 0, 0, 0, 0, 1}) == 1) page = PageId(pick({-1, 100000}));
    }
    ThreadPool threads(pick({1, 2, 3}));
    s.args.execution = {.threads = &threads, .batch_invariant = pick({0, 1}) == 1};
    SCOPED_TRACE(round);
    expect_close(attend(s), run(ref_attend_gqa, s.args, dims.v_dim));
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace lathe
