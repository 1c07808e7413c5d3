#include "engine/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/test_scale.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;

constexpr ScheduleLimits kLimits{4, 8};  // pages of 4 tokens, 8 prefill rows

ScheduledRequest prefill(std::int64_t known, std::int64_t computed, std::int64_t pages) {
  return {known, computed, pages, false};
}
ScheduledRequest decode(std::int64_t known, std::int64_t pages) {
  return {known, known - 1, pages, true};
}

struct Result {
  Schedule schedule;
  std::vector<std::int64_t> rows;
};
Result run(const std::vector<ScheduledRequest>& running, std::int64_t available) {
  Result out;
  out.rows.resize(running.size());
  out.schedule = schedule_running(running, kLimits, available, out.rows);
  return out;
}

TEST(Schedule, KnowsADecodeRow) {
  EXPECT_TRUE(decode(5, 2).decodes());
  // A prompt's last token is prefill, and so is an answer that is recomputed.
  EXPECT_FALSE(prefill(5, 4, 2).decodes());
  EXPECT_FALSE((ScheduledRequest{9, 0, 0, true}).decodes());
}

TEST(Schedule, DecodesHaveTheirRowsAndPrefillsShareTheRest) {
  const Result r = run({prefill(5, 0, 0), decode(3, 1), prefill(20, 4, 1), decode(9, 3)}, 100);
  EXPECT_FALSE(r.schedule.preempt_youngest);
  EXPECT_THAT(r.rows, ElementsAre(5, 1, 3, 1));
  EXPECT_EQ(r.schedule.prefill_rows_left, 0);
  EXPECT_EQ(run({prefill(5, 0, 0), decode(3, 1)}, 2).schedule.prefill_rows_left, 3);
  EXPECT_EQ(run({}, 0).schedule.prefill_rows_left, 8);
}

TEST(Schedule, TheOldestTakesThePageOfTheYoungest) {
  // A decode at a page's end needs a page: token 5 is the first of its second page.
  EXPECT_FALSE(run({decode(5, 1), decode(3, 1)}, 1).schedule.preempt_youngest);
  EXPECT_TRUE(run({decode(5, 1), decode(3, 1)}, 0).schedule.preempt_youngest);
  // The youngest decode gives way itself.
  EXPECT_TRUE(run({decode(3, 1), decode(5, 1)}, 0).schedule.preempt_youngest);
  // A decode with room in its page does not care.
  EXPECT_THAT(run({decode(3, 1), decode(4, 1)}, 0).rows, ElementsAre(1, 1));
  // An older prefill does not wait for younger ones.
  EXPECT_TRUE(run({prefill(8, 0, 0), decode(3, 1)}, 1).schedule.preempt_youngest);
}

TEST(Schedule, TheYoungestPrefillTakesWhatIsThere) {
  EXPECT_THAT(run({decode(3, 1), prefill(20, 2, 1)}, 1).rows, ElementsAre(1, 6));
  EXPECT_THAT(run({decode(3, 1), prefill(20, 4, 1)}, 0).rows, ElementsAre(1, 0));
  EXPECT_THAT(run({decode(5, 1), prefill(20, 2, 1)}, 1).rows, ElementsAre(1, 2));
}

TEST(Schedule, AdmissionLeavesRoomForEveryPrefillThatHasBegun) {
  // 9 tokens and the one after them take 3 pages of 4.
  EXPECT_TRUE(admits({}, prefill(9, 0, 0), kLimits, 3));
  EXPECT_FALSE(admits({}, prefill(9, 0, 0), kLimits, 2));
  EXPECT_TRUE(admits({}, prefill(9, 4, 1), kLimits, 2));
  // A page is full: the token after 8 takes a third one.
  EXPECT_FALSE(admits({}, prefill(8, 0, 0), kLimits, 2));
  const std::vector<ScheduledRequest> running{prefill(20, 8, 2), decode(4, 1)};
  EXPECT_TRUE(admits(running, prefill(3, 0, 0), kLimits, 4 + 1 + 1));
  EXPECT_FALSE(admits(running, prefill(3, 0, 0), kLimits, 4 + 1));
}

// E3 on the functions alone: requests that each fit an empty pool, run to their ends with nothing
// but these decisions. The oldest computes a row in every step, so all of them finish.
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
    const ScheduleLimits limits{1 + pick(4), 1 + pick(6)};
    const std::int64_t total = 2 + pick(10);
    std::vector<Job> waiting;
    std::vector<Job> running;
    for (std::int64_t i = 2 + pick(6); i > 0; --i) {
      Job job;
      job.length = 2 + pick(total * limits.page_size - 1);
      job.prompt = 1 + pick(job.length - 1);
      job.state.known = job.prompt;
      waiting.push_back(job);
    }
    int steps = 0;
    while (!running.empty() || !waiting.empty()) {
      ASSERT_LT(++steps, 3000);
      std::int64_t available = total;
      std::vector<ScheduledRequest> states;
      for (const Job& j : running) {
        available -= j.state.pages;
        states.push_back(j.state);
      }
      ASSERT_GE(available, 0);
      std::vector<std::int64_t> rows(running.size());
      const Schedule s = schedule_running(states, limits, available, rows);
      if (s.preempt_youngest) {
        ASSERT_GT(running.size(), 1u);
        Job job = running.back();
        running.pop_back();
        job.state.computed = job.state.pages = 0;
        waiting.insert(waiting.begin(), job);
        continue;
      }
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
          ASSERT_GT(rows[0], 0) << "the oldest does not get on";
        }
        r.computed += rows[i];
        computed += rows[i];
        const auto pages = pages_for(r.computed, limits.page_size);
        available -= std::max<std::int64_t>(0, pages - r.pages);
        r.pages = std::max(r.pages, pages);
        if (r.computed == r.known) ++r.known, r.answered = true;
      }
      ASSERT_GE(available, 0);
      ASSERT_EQ(prefilled, limits.prefill_rows - s.prefill_rows_left);
      std::erase_if(running, [](const Job& j) { return j.state.known == j.length; });
      states.clear();
      available = total;
      for (const Job& j : running) {
        states.push_back(j.state);
        available -= j.state.pages;
      }
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

}  // namespace
}  // namespace lathe
