#include "engine/runner/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attn/draft_rows.h"
#include "engine/test/fake_model_test_util.h"
#include "model/memory/fit_model.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;

// A batch of requests with consecutive pages of their own.
struct Batch {
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<std::vector<PageId>>> pages;  // [items][layer groups]
  std::vector<BatchItem> items;

  void add(Phase phase, std::int32_t cached, std::int32_t rows, std::int64_t logits = 1) {
    const std::int32_t count = (cached + rows + 3) / 4;
    std::vector<PageId> list;
    for (std::int32_t i = 0; i < count; ++i) list.emplace_back(next_page++);
    pages.push_back({std::move(list)});
    tokens.push_back(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 9 + next_page % 8));
    items.push_back({phase, {}, cached, {}, logits});
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i].pages = pages[i];
      items[i].tokens = tokens[i];
    }
  }
  std::int32_t next_page = 0;
};

Runner make(FakeSetup& setup) {
  auto made = Runner::create(*setup.model, *setup.cache);
  EXPECT_TRUE(made);
  return std::move(*made);
}

TEST(Runner, ASegmentForEachPhase) {
  FakeSetup setup;
  Runner runner = make(setup);
  Batch batch;
  batch.add(Phase::decode, 0, 1);
  batch.add(Phase::decode, 0, 1);
  batch.add(Phase::extend, 0, 5, 0);
  batch.add(Phase::extend, 0, 3);
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
  EXPECT_EQ(setup.model->segments, 2);
  for (std::size_t i : {0u, 1u, 3u}) {
    const auto expected = fake_logits(batch.tokens[i], FakeModel::kVocab);
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), runner.logits(i, 0, setup.ops())->begin()))
        << i;
  }
  ASSERT_TRUE(run_batch(runner, std::span(batch.items).first(2), setup.ops(), false));
  EXPECT_EQ(setup.model->segments, 1);
}

TEST(Runner, SegmentsFitTheCompactBuffer) {
  FakeOptions options;
  options.compact_extend = true;
  options.context_length = 20;  // also the rows of the compact buffer
  FakeSetup setup(options);
  Runner runner = make(setup);
  Batch batch;
  for (int i = 0; i < 5; ++i) batch.add(Phase::extend, 0, 8);
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
  EXPECT_EQ(setup.model->segments, 3);  // two of 16 keys, one of 8
  for (std::size_t i = 0; i < 5; ++i) {
    const auto expected = fake_logits(batch.tokens[i], FakeModel::kVocab);
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), runner.logits(i, 0, setup.ops())->begin()))
        << i;
  }
}

// E8: neither a long neighbour nor the rest of the chunk changes a row's route.
TEST(Runner, ARowTakesTheRouteOfItsPosition) {
  FakeOptions options;
  options.short_context = 10;
  FakeSetup setup(options);
  Runner runner = make(setup);
  Batch batch;
  batch.add(Phase::extend, 0, 10);
  batch.add(Phase::extend, 0, 4);
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
  EXPECT_EQ(setup.model->segments, 1);
  batch.add(Phase::extend, 0, 11);
  batch.add(Phase::extend, 0, 30);
  batch.add(Phase::extend, 0, 2);
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
  EXPECT_EQ(setup.model->segments, 2);  // each request's first ten rows, and the rest
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const auto expected = fake_logits(batch.tokens[i], FakeModel::kVocab);
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), runner.logits(i, 0, setup.ops())->begin()))
        << i;
  }
}

// Requests with few rows share a segment, however many rows they have in all.
TEST(Runner, ARouteForManyRowsOfARequestTakesNoOthers) {
  FakeOptions options;
  options.least_rows = 10;
  FakeSetup setup(options);
  Runner runner = make(setup);
  Batch batch;
  for (const int rows : {9, 10, 4, 30, 5}) batch.add(Phase::extend, 0, rows);
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
  EXPECT_EQ(setup.model->segments, 2);
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const auto expected = fake_logits(batch.tokens[i], FakeModel::kVocab);
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), runner.logits(i, 0, setup.ops())->begin()))
        << i;
  }
}

TEST(Runner, NamesTheItemThatIsNotFinite) {
  FakeSetup setup;
  Runner runner = make(setup);
  Batch batch;
  batch.add(Phase::decode, 0, 1);
  batch.add(Phase::extend, 0, 5);
  batch.add(Phase::extend, 0, 5);
  batch.tokens[2][3] = FakeModel::kNanToken;
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), true));
  ASSERT_EQ(runner.non_finite().size(), 1u);
  EXPECT_EQ(runner.non_finite()[0].item, 2u);
  EXPECT_EQ(runner.non_finite()[0].layer, 1);
  ASSERT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
  EXPECT_TRUE(runner.non_finite().empty());
}

// Row counts of the steps that a runner records, of all batches that an engine may launch.
std::set<std::int64_t> recorded_rows(FakeSetup& setup, Runner& runner, Phase phase) {
  std::set<std::int64_t> out;
  const std::int64_t requests = setup.plan.max_requests();
  for (std::int64_t n = 1; n <= requests; ++n) {
    const std::int64_t drafts =
        phase == Phase::decode ? 0
                               : std::min<std::int64_t>(setup.plan.draft_tokens(), drafts_at(n));
    for (std::int64_t rows = n + (drafts > 0); rows <= n * (1 + drafts); ++rows) {
      Batch batch;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto own = static_cast<std::int32_t>((rows + i) / n);
        batch.add(phase, 0, own, own);
      }
      EXPECT_TRUE(run_batch(runner, batch.items, setup.ops(), false));
      out.insert(setup.model->step_rows);
      if (phase == Phase::decode || drafts == 0) break;
    }
  }
  return out;
}

// Graphs are planned for exactly the sizes that steps are padded to; those of more than 64 rows
// have one for greedy sampling and one for the rest.
TEST(Runner, RecordsAsManySizesAsAreBudgeted) {
  const auto config = *load_model_config(fixture_dir("deepseek_v4_wide"));
  const auto budget = [&](std::int64_t requests, std::int32_t draft_tokens) {
    PlanRequest request;
    request.context_length = request.chunked_prefill_size = 512;
    request.max_running_requests = requests;
    request.draft_tokens = draft_tokens;
    const auto plan = fit_model(config, std::nullopt, describe_machine(Device::sm90), request,
                                model_kernels(Device::sm90));
    EXPECT_TRUE(plan);
    return plan->budget(BudgetKind::graphs)->bytes;
  };
  for (const std::int64_t requests : {1, 3, 5, 8, 33, 70, 100}) {
    for (const std::int32_t draft_tokens : {0, 3}) {
      FakeOptions options;
      options.pages = 1024;
      options.max_requests = requests;
      options.draft_tokens = draft_tokens;
      FakeSetup setup(options);
      auto runner = Runner::create(*setup.model, *setup.cache, true);
      ASSERT_TRUE(runner);
      std::int64_t graphs = 0;
      for (const std::int64_t rows : recorded_rows(setup, *runner, Phase::decode)) {
        graphs += rows > 64 ? 2 : 1;
      }
      if (draft_tokens > 0) {
        for (const std::int64_t rows : recorded_rows(setup, *runner, Phase::verify)) {
          graphs += rows > 64 ? 2 : 1;
        }
      }
      EXPECT_EQ(budget(requests, draft_tokens), graphs * budget(1, 0))
          << requests << " requests, " << draft_tokens << " drafts";
    }
  }
}

TEST(Runner, PassesErrorsOn) {
  FakeSetup setup;
  Runner runner = make(setup);
  Batch batch;
  batch.add(Phase::extend, 0, 5);
  setup.model->fail_next = true;
  const auto failed = run_batch(runner, batch.items, setup.ops(), false);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().field, "forward");
  batch.pages[0][0].resize(1);
  const auto short_of_pages = run_batch(runner, batch.items, setup.ops(), false);
  ASSERT_FALSE(short_of_pages);
  EXPECT_THAT(short_of_pages.error().field, HasSubstr("pages"));
}

}  // namespace
}  // namespace lathe
