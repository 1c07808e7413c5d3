#include "engine/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/test_scale.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;

constexpr PageRule kPages{.page_size = 4};
const ScheduleLimits kLimits{std::span(&kPages, 1), 4, 8};  // 8 prefill rows

ScheduledRequest prefill(std::int64_t known, std::int64_t computed, std::int64_t pages) {
  return {known, computed, 4 * pages, false};
}
ScheduledRequest decode(std::int64_t known, std::int64_t pages) {
  return {known, known - 1, 4 * pages, true};
}

struct ScheduleResult {
  Decision schedule;
  std::vector<std::int64_t> rows;
};
ScheduleResult run(const std::vector<ScheduledRequest>& running, std::int64_t available) {
  ScheduleResult out;
  out.rows.resize(running.size());
  out.schedule = schedule_running(running, kLimits, std::span(&available, 1), out.rows);
  return out;
}

bool admitted(const std::vector<ScheduledRequest>& running, const ScheduledRequest& next,
              std::int64_t available) {
  return admits(running, next, kLimits, std::span(&available, 1));
}

TEST(Schedule, KnowsADecodeRow) {
  EXPECT_TRUE(decode(5, 2).decodes());
  // A prompt's last token is prefill, and so is a recomputed answer.
  EXPECT_FALSE(prefill(5, 4, 2).decodes());
  EXPECT_FALSE((ScheduledRequest{9, 0, 0, true}).decodes());
}

TEST(Schedule, DecodesHaveTheirRowsAndPrefillsShareTheRest) {
  const ScheduleResult r =
      run({prefill(5, 0, 0), decode(3, 1), prefill(20, 4, 1), decode(9, 3)}, 100);
  EXPECT_FALSE(r.schedule.preempt_last);
  EXPECT_THAT(r.rows, ElementsAre(5, 1, 3, 1));
  EXPECT_EQ(r.schedule.prefill_rows_left, 0);
  EXPECT_EQ(run({prefill(5, 0, 0), decode(3, 1)}, 2).schedule.prefill_rows_left, 3);
  EXPECT_EQ(run({}, 0).schedule.prefill_rows_left, 8);
}

TEST(Schedule, TheOldestTakesThePageOfTheYoungest) {
  // A decode at a page's end needs a page: token 5 is the first of its second page.
  EXPECT_FALSE(run({decode(5, 1), decode(3, 1)}, 1).schedule.preempt_last);
  EXPECT_TRUE(run({decode(5, 1), decode(3, 1)}, 0).schedule.preempt_last);
  // The youngest decode is preempted itself.
  EXPECT_TRUE(run({decode(3, 1), decode(5, 1)}, 0).schedule.preempt_last);
  // A decode with room in its page is not affected.
  EXPECT_THAT(run({decode(3, 1), decode(4, 1)}, 0).rows, ElementsAre(1, 1));
  // An older prefill does not wait for younger ones.
  EXPECT_TRUE(run({prefill(8, 0, 0), decode(3, 1)}, 1).schedule.preempt_last);
}

TEST(Schedule, TheYoungestPrefillTakesWhatIsThere) {
  EXPECT_THAT(run({decode(3, 1), prefill(20, 2, 1)}, 1).rows, ElementsAre(1, 6));
  EXPECT_THAT(run({decode(3, 1), prefill(20, 4, 1)}, 0).rows, ElementsAre(1, 0));
  EXPECT_THAT(run({decode(5, 1), prefill(20, 2, 1)}, 1).rows, ElementsAre(1, 2));
}

TEST(Schedule, AdmissionLeavesRoomForEveryPrefillThatHasBegun) {
  // 9 tokens and the next one take 3 pages of 4.
  EXPECT_TRUE(admitted({}, prefill(9, 0, 0), 3));
  EXPECT_FALSE(admitted({}, prefill(9, 0, 0), 2));
  EXPECT_TRUE(admitted({}, prefill(9, 4, 1), 2));
  // Full pages: the token after the 8th needs a third page.
  EXPECT_FALSE(admitted({}, prefill(8, 0, 0), 2));
  // That token has no row if it is the last.
  ScheduledRequest last = prefill(8, 0, 0);
  last.ends = true;
  EXPECT_TRUE(admitted({}, last, 2));
  EXPECT_FALSE(admitted({}, last, 1));
  EXPECT_TRUE(admitted(std::vector{last}, prefill(3, 0, 0), 2 + 1));
  const std::vector<ScheduledRequest> running{prefill(20, 8, 2), decode(4, 1)};
  EXPECT_TRUE(admitted(running, prefill(3, 0, 0), 4 + 1 + 1));
  EXPECT_FALSE(admitted(running, prefill(3, 0, 0), 4 + 1));
}

// The number of pages that a request holds between steps.
std::int64_t held(const PageRule& rule, std::int64_t computed, std::int64_t block_tokens) {
  return pages_for(computed, rule.page_size) - rule.first_needed_entry(computed, block_tokens);
}

TEST(Schedule, AWindowKeepsItsLastPages) {
  // Blocks of 8 tokens; a request keeps the 6 tokens before the last boundary.
  const PageRule window{.page_size = 2, .resume_tokens = 6, .most = 9};
  EXPECT_EQ(window.first_needed_entry(0, 8), 0);
  EXPECT_EQ(window.first_needed_entry(15, 8), 1);  // boundary 8: from token 2 on
  EXPECT_EQ(window.first_needed_entry(16, 8), 5);  // boundary 16: from token 10 on
  EXPECT_EQ(held(window, 15, 8), 7);
  EXPECT_EQ(held(window, 16, 8), 3);
  // Chunks of 12 tokens: at a boundary those of its chunk, at least one.
  const PageRule chunk{.page_size = 2, .resume_tokens = 11, .chunk_tokens = 12, .most = 9};
  EXPECT_EQ(chunk.first_needed_entry(15, 8), 0);
  EXPECT_EQ(chunk.first_needed_entry(16, 8), 6);
  EXPECT_EQ(chunk.first_needed_entry(31, 8), 11);  // boundary 24 begins a chunk
  EXPECT_EQ(chunk.first_needed_entry(40, 8), 18);
  const PageRule state{
      .page_size = 8, .resume_tokens = 8, .most = 4, .per_step = 2, .rewrites = true};
  EXPECT_EQ(held(state, 16, 8), 1);  // the boundary's
  EXPECT_EQ(held(state, 17, 8), 2);  // the boundary's and the last token's
  EXPECT_EQ(state.new_pages(16, 17), 1);
  EXPECT_EQ(state.new_pages(17, 18), 1);  // rewritten
  EXPECT_EQ(state.new_pages(17, 60), 2);
  EXPECT_EQ(state.new_pages(17, 17), 0);
}

TEST(Schedule, EveryKindOfPageCounts) {
  const std::vector<PageRule> rules{{.page_size = 4},
                                    {.page_size = 2, .resume_tokens = 2, .most = 5}};
  const ScheduleLimits limits{rules, 4, 8};
  const auto rows = [&](std::vector<ScheduledRequest> running,
                        std::vector<std::int64_t> available) {
    std::vector<std::int64_t> out(running.size());
    const Decision s = schedule_running(running, limits, available, out);
    if (s.preempt_last) out.assign(1, -1);
    return out;
  };
  EXPECT_THAT(rows({prefill(9, 0, 0)}, {3, 5}), ElementsAre(8));
  EXPECT_THAT(rows({prefill(9, 0, 0)}, {3, 3}), ElementsAre(6));
  EXPECT_THAT(rows({prefill(9, 0, 0)}, {1, 3}), ElementsAre(4));
  EXPECT_THAT(rows({decode(9, 2), decode(9, 2)}, {2, 1}), ElementsAre(-1));
  EXPECT_THAT(rows({decode(9, 2), decode(9, 2)}, {2, 2}), ElementsAre(1, 1));
  // It needs 5 pages of the second kind, however long it is.
  EXPECT_TRUE(admits({}, prefill(99, 0, 0), limits, std::vector<std::int64_t>{25, 5}));
  EXPECT_FALSE(admits({}, prefill(99, 0, 0), limits, std::vector<std::int64_t>{25, 4}));
  EXPECT_FALSE(admits({}, prefill(99, 0, 0), limits, std::vector<std::int64_t>{24, 5}));
}

// E3 for the functions alone: by these decisions, requests that each fit an empty pool run to their
// ends. The oldest computes a row in every step, so all of them finish.
TEST(Schedule, NobodyStarves) {
  std::mt19937 rng(test_seed(5));
  struct Job {
    ScheduledRequest state;
    std::int64_t length = 0;  // prompt and answer
    std::int64_t prompt = 0;
  };
  for (int round = 0; round < 2000 * test_scale(); ++round) {
    const auto pick = [&](std::int64_t n) {
      return static_cast<std::int64_t>(rng() % static_cast<unsigned>(n));
    };
    // Unbounded pages; in some rounds also window pages and a state.
    const std::int64_t block = 1 + pick(4);
    std::vector<PageRule> rules{{.page_size = block}};
    std::vector<std::int64_t> total{2 + pick(10)};
    if (pick(2) == 0) {
      const std::int64_t kept = 1 + pick(6);
      const std::int64_t least = kept + block - 1 + 2;  // pages of one token each
      total.push_back(least + pick(8));
      rules.push_back(
          {.page_size = 1, .resume_tokens = kept, .most = std::min(total[1], least + 5)});
    }
    if (pick(2) == 0) {
      total.push_back(4 + pick(4));
      rules.push_back(
          {.page_size = block, .resume_tokens = block, .most = 4, .per_step = 2, .rewrites = true});
    }
    const ScheduleLimits limits{rules, block, 1 + pick(6)};
    std::vector<Job> waiting;
    std::vector<Job> running;
    for (std::int64_t i = 2 + pick(6); i > 0; --i) {
      Job job;
      job.length = 2 + pick(total[0] * block - 1);
      job.prompt = 1 + pick(job.length - 1);
      job.state.known = job.prompt;
      waiting.push_back(job);
    }
    std::vector<std::int64_t> available;
    std::vector<ScheduledRequest> states;
    const auto look = [&] {
      available = total;
      states.clear();
      for (const Job& j : running) {
        states.push_back(j.state);
        for (std::size_t g = 0; g < rules.size(); ++g) {
          available[g] -= held(rules[g], j.state.computed, block);
        }
      }
      for (const std::int64_t a : available) ASSERT_GE(a, 0);
    };
    int steps = 0;
    while (!running.empty() || !waiting.empty()) {
      ASSERT_LT(++steps, 3000);
      look();
      std::vector<std::int64_t> rows(running.size());
      const Decision s = schedule_running(states, limits, available, rows);
      if (s.preempt_last) {
        ASSERT_GT(running.size(), 1u);
        Job job = running.back();
        running.pop_back();
        job.state.computed = job.state.covered = 0;
        waiting.insert(waiting.begin(), job);
        continue;
      }
      for (const std::int64_t a : available) ASSERT_GE(a, 0);
      std::int64_t computed = 0;
      std::int64_t prefilled = 0;
      for (std::size_t i = 0; i < running.size(); ++i) {
        ScheduledRequest& r = running[i].state;
        if (r.decodes()) {
          ASSERT_EQ(rows[i], 1);
        } else {
          prefilled += rows[i];
        }
        if (i == 0) {
          ASSERT_GT(rows[0], 0) << "the oldest makes no progress";
        }
        for (const PageRule& rule : rules) {
          ASSERT_LE(
              held(rule, r.computed, block) + rule.new_pages(r.computed, r.computed + rows[i]),
              rule.most);
        }
        r.computed += rows[i];
        r.covered = r.computed;
        computed += rows[i];
        if (r.computed == r.known) ++r.known, r.answered = true;
      }
      ASSERT_EQ(prefilled, limits.prefill_rows - s.prefill_rows_left);
      std::erase_if(running, [](const Job& j) { return j.state.known == j.length; });
      look();
      if (s.prefill_rows_left > 0 && !waiting.empty() &&
          admits(states, waiting.front().state, limits, available)) {
        running.push_back(waiting.front());
        waiting.erase(waiting.begin());
      } else {
        ASSERT_FALSE(running.empty() && computed == 0) << "a step without rows";
      }
    }
  }
}

TEST(Schedule, RowsAreSharedEvenly) {
  const auto shared = [](std::int64_t rows, std::vector<std::int64_t> wanted) {
    share_rows(rows, wanted);
    return wanted;
  };
  EXPECT_EQ(shared(90, {1000, 1000, 1000}), (std::vector<std::int64_t>{30, 30, 30}));
  EXPECT_EQ(shared(90, {1000, 10, 1000}), (std::vector<std::int64_t>{40, 10, 40}));
  EXPECT_EQ(shared(90, {0, 1000, 0}), (std::vector<std::int64_t>{0, 90, 0}));
  EXPECT_EQ(shared(90, {20, 30}), (std::vector<std::int64_t>{20, 30}));
  EXPECT_EQ(shared(5, {9, 9, 9}), (std::vector<std::int64_t>{2, 2, 1}));
  EXPECT_EQ(shared(1, {9, 3}), (std::vector<std::int64_t>{0, 1}));
}

TEST(Schedule, APrefillHasAtMostItsShare) {
  ScheduledRequest first = prefill(100, 0, 0);
  const ScheduledRequest second = prefill(50, 0, 0);
  first.most_rows = 5;
  EXPECT_THAT(run({first, second}, 100).rows, ElementsAre(5, 3));
}

}  // namespace
}  // namespace lathe
