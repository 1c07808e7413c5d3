// Equal bits of latent attention for repeated calls, any number of threads, other requests in the
// batch, chunked prompts and gathered rows. And a random search for differences from the oracle.
#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "kernels/cpu/latent/latent_attend.h"
#include "kernels/cpu/latent/test/latent_test_util.h"
#include "layout/codec/codec.h"

namespace lathe {
namespace {

using namespace latent_test;

const Requests kMixed = {{3000, 1}, {17, 4}, {1100, 30}, {0, 0}, {64, 1}, {2049, 2}};

TEST(LatentEqual, TwentyRepeats) {
  Scene s(latent_layout(LayoutKind::mla_fp8_block), 16, 5, kMixed);
  ThreadPool threads(3);
  Scratch scratch;
  for (const bool invariant : {false, true}) {
    s.args.execution = {&threads, &scratch, invariant};
    const Outputs first = s.attend();
    for (int i = 0; i < 20; ++i) expect_equal(s.attend(), first);
  }
}

TEST(LatentEqual, LayersShareASchedule) {
  for (const bool invariant : {false, true}) {
    Schedule schedule(kHostMemory);
    // The second step is smaller: data left by the first must not matter.
    for (const Requests& requests : {kMixed, Requests{{900, 2}, {70, 1}}}) {
      for (const bool sparse : {false, true}) {
        Scene s(latent_layout(LayoutKind::mla_bf16), 64, 3, requests);
        ThreadPool threads(3);
        Scratch scratch;
        s.args.execution = {&threads, &scratch, invariant};
        const Ints list = s.random_list(1500);
        if (sparse) s.by_index(list);
        prepare(cpu_prepare_latent, s.args, schedule);
        for (int layer = 0; layer < 2; ++layer) {
          s.q = random_matrix(s.batch.rows, s.q.cols, s.rng);
          s.args.q = s.q.view();
          s.args.schedule = nullptr;
          const Outputs alone = s.attend();
          s.args.schedule = &schedule;
          const Outputs shared = s.attend();
          expect_equal(shared, alone);
          expect_f32_close(shared, s.oracle());
        }
      }
    }
  }
}

TEST(LatentEqual, AnyNumberOfThreadsWhenBatchInvariant) {
  for (const bool sparse : {false, true}) {
    Scene s(latent_layout(LayoutKind::mla_bf16), 64, 3, kMixed);
    const Ints list = s.random_list(1500);
    if (sparse) s.by_index(list);
    s.args.execution.batch_invariant = true;
    const Outputs alone = s.attend();
    for (const int n : {1, 2, 3, 5, 40}) {
      ThreadPool threads(n);
      s.args.execution.threads = &threads;
      expect_equal(s.attend(), alone);
    }
  }
}

// Attends for rows [begin, end) of the first request of `s`; keys after the last row do not exist.
Outputs chunk_of(const Scene& s, std::int64_t begin, std::int64_t end, const Execution& execution) {
  const std::int32_t indptr[] = {0, static_cast<std::int32_t>(end - begin)};
  const auto before = s.batch.kv_lens[0] - s.batch.q_indptr[1];
  const std::int32_t lens[] = {before + static_cast<std::int32_t>(end)};
  AttendArgs args = s.args;
  args.q.data = args.q.row(begin);
  args.q.rows = end - begin;
  args.q_indptr = indptr;
  args.kv_lens = lens;
  args.main.page_table = args.main.page_table.first(static_cast<std::size_t>(s.batch.width));
  args.execution = execution;
  return run(cpu_attend_latent, args, args.problem.v_dim());
}

void expect_rows(const Outputs& part, const Outputs& whole, std::int64_t begin) {
  for (std::int64_t r = 0; r < part.out.rows; ++r) {
    ASSERT_TRUE(std::ranges::equal(part.out.row(r), whole.out.row(begin + r))) << begin + r;
    ASSERT_TRUE(std::ranges::equal(part.lse.row(r), whole.lse.row(begin + r))) << begin + r;
  }
}

TEST(LatentEqual, ChunksAndCompanionsWhenBatchInvariant) {
  for (const int heads : {1, 3, 16}) {
    // The first request's rows cross the starts of parts at 256, 512, 1024 and 2048 keys. The batch
    // also has the last rows of two other requests.
    for (const int keys : {300, 580, 1090, 2100}) {
      Scene s(latent_layout(LayoutKind::mla_fp8_block), 16, heads, {{keys, 130}, {70, 3}, {5, 1}});
      ThreadPool threads(2);
      const Execution execution{&threads, nullptr, true};
      s.args.execution = execution;
      const Outputs whole = s.attend();
      for (const int cut : {1, 5, 60, 64, 65, 100}) {
        expect_rows(chunk_of(s, 0, cut, execution), whole, 0);
        expect_rows(chunk_of(s, cut, 130, {nullptr, nullptr, true}), whole, cut);
      }
    }
  }
}

TEST(LatentEqual, GatheredRowsOfTwoSources) {
  for (const bool invariant : {false, true}) {
    Scene s(CacheLayout(LayoutKind::v4_fp8), 16, 8, {{300, 3}, {20, 1}, {1500, 1}});
    ThreadPool threads(2);
    s.args.execution = {&threads, nullptr, invariant};
    s.args.problem.kind = ProblemKind::window_compressed;
    s.args.problem.window = 100;
    s.args.problem.compress_ratio = 4;
    const Ints entries = s.random_list(1200);
    s.args.extra = s.args.main;
    s.args.extra.page_table = {};
    s.args.extra.table_width = 0;
    name_by_index(s.args.extra, entries, 1200);
    const Outputs in_place = s.attend();

    // One list per row: the window, then the entries. Every entry of the list has a compact row.
    const Ints window = s.batch.causal_list(16, 100, 100);
    std::vector<Slot> slots;
    for (std::int64_t r = 0; r < s.batch.rows; ++r) {
      for (std::int64_t j = 0; j < 100; ++j)
        slots.emplace_back(window[static_cast<std::size_t>(r * 100 + j)]);
      for (std::int64_t j = 0; j < 1200; ++j)
        slots.emplace_back(entries[static_cast<std::size_t>(r * 1200 + j)]);
    }
    Ints rows(slots.size(), -1);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (s.pool.view().holds(slots[i])) rows[i] = static_cast<std::int32_t>(i);
      if (!s.pool.view().holds(slots[i])) slots[i] = Slot();
    }
    Matrix<bf16> compact(std::ssize(slots), 512);
    ASSERT_TRUE(gather_decode(s.pool.view(), slots, compact.mutable_view()));
    s.args.problem.compress_ratio = 0;
    s.args.extra = {};
    s.by_index(rows, ProblemKind::window_compressed);
    s.args.main.pool.reset();
    s.args.main.compact = compact.view();
    expect_equal(s.attend(), in_place);
  }
}

TEST(LatentEqual, DenseAndTheListOfAllItsKeysWhenBatchInvariant) {
  Scene s(CacheLayout(LayoutKind::mla_fp8), 64, 4, {{1200, 1}, {70, 2}});
  s.args.execution.batch_invariant = true;
  const Outputs dense = s.attend();
  const Ints list = s.batch.causal_list(64, 1200);
  s.by_index(list);
  expect_equal(s.attend(), dense);
}

// One request much longer than many others is cut, the others are not.
TEST(LatentEqual, OneLongRequestAmongManyShortOnes) {
  Requests requests(30, {20, 1});
  requests[7] = {4000, 2};
  Scene s(latent_layout(LayoutKind::mla_fp8), 64, 3, requests);
  const Outputs want = s.oracle();
  ThreadPool threads(2);
  s.args.execution.threads = &threads;
  expect_f32_close(s.attend(), want);
  s.args.execution.batch_invariant = true;
  const Outputs invariant = s.attend();
  expect_f32_close(invariant, want);
  s.args.execution.threads = nullptr;
  expect_equal(s.attend(), invariant);
}

TEST(LatentEqual, ScratchStopsGrowing) {
  Scene s(latent_layout(LayoutKind::mla_fp8), 16, 4, kMixed);
  ThreadPool threads(2);
  Scratch scratch;
  s.args.execution = {&threads, &scratch, false};
  s.attend();
  const std::int64_t growths = scratch.growths();
  for (int i = 0; i < 5; ++i) s.attend();
  EXPECT_EQ(scratch.growths(), growths);
  EXPECT_EQ(growths, 1);
}

class LatentRandom : public ::testing::TestWithParam<int> {};

TEST_P(LatentRandom, AgreesWithTheOracle) {
  Rng rng(test_seed(static_cast<unsigned>(GetParam())));
  const auto below = [&](unsigned n) { return static_cast<int>(rng() % n); };
  for (int round = 0; round < 6 * test_scale(); ++round) {
    const LayoutKind kind = kLatentKinds[rng() % kLatentKinds.size()];
    const int page = 1 << below(8);
    const int heads = 1 + below(20);
    Requests requests;
    for (int r = below(5); r >= 0; --r) {
      const int keys = below(400);
      requests.emplace_back(keys, std::min(keys, below(3) == 0 ? below(40) : below(3)));
    }
    SCOPED_TRACE(std::string(name(kind)) + " page " + std::to_string(page) + " heads " +
                 std::to_string(heads) + " round " + std::to_string(round));
    Scene s(latent_layout(kind), page, heads, requests, static_cast<unsigned>(rng()));
    ThreadPool threads(1 + below(3));
    s.args.execution = {&threads, nullptr, below(2) == 0};
    std::vector<float> sink;
    if (below(2) == 0) {
      for (int h = 0; h < heads; ++h) sink.push_back(static_cast<float>(below(9)) - 4.0f);
      s.args.problem.sink = true;
      s.args.sink = sink;
    }
    const std::int64_t width = 1 + below(500);
    const Ints list = s.random_list(width);
    Ints lengths;
    for (std::int64_t r = 0; r < s.batch.rows; ++r) {
      lengths.push_back(below(static_cast<unsigned>(width) + 1));
    }
    const int form = below(4);
    if (form == 1) s.by_index(list);
    if (form >= 2) {
      s.args.problem.kind = ProblemKind::window_compressed;
      s.args.problem.window = below(200);
    }
    if (form == 3) {
      s.args.problem.compress_ratio = 128;
      s.args.extra = s.args.main;
      s.args.extra.page_table = {};
      s.args.extra.table_width = 0;
      name_by_index(s.args.extra, list, width);
      s.args.extra.index_lengths = lengths;
    }
    if (form == 1 && below(2) == 0) s.args.main.index_lengths = lengths;
    expect_oracle(s);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LatentRandom, ::testing::Range(0, 40));

}  // namespace
}  // namespace lathe
