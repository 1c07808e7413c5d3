// The watchdog of ranks, with a clock of the test's own, and what ends a step on all ranks.
#include "engine/runner/rank_group.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <optional>

#include "base/arena.h"
#include "base/rows.h"
#include "kernels/devices/all.h"
#include "kernels/host_communicator.h"
#include "kernels/test/faulty_communicator_test_util.h"
#include "ops/exchange.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;

constexpr RankWatch::Limits kWatchLimits{.exchange = std::chrono::seconds(20), .first_steps = 0};

TEST(RankWatch, TheLimitIsOnAnExchangeNotOnAStep) {
  RankWatch watch(kWatchLimits);
  std::vector<std::uint64_t> finished{0, 0};
  // An exchange every 15 s, on either rank.
  for (int i = 0; i < 20; ++i) {
    ++finished[static_cast<std::size_t>(i % 2)];
    EXPECT_EQ(watch.look(std::chrono::seconds(15 * i), 1, finished, false),
              RankWatch::Verdict::fine);
  }
  EXPECT_EQ(watch.look(std::chrono::seconds(15 * 19 + 20), 1, finished, false),
            RankWatch::Verdict::fine);
  EXPECT_EQ(watch.look(std::chrono::seconds(15 * 19 + 21), 1, finished, false),
            RankWatch::Verdict::stopped);
}

TEST(RankWatch, AnotherStepHasTheWholeLimit) {
  RankWatch watch(kWatchLimits);
  const std::vector<std::uint64_t> finished{7, 7};
  for (std::uint64_t step = 1; step < 9; ++step) {
    EXPECT_EQ(watch.look(std::chrono::seconds(19 * step), step, finished, false),
              RankWatch::Verdict::fine);
  }
  EXPECT_EQ(watch.look(std::chrono::seconds(1000), 0, finished, false),
            RankWatch::Verdict::fine);  // none runs
  EXPECT_EQ(watch.look(std::chrono::seconds(1010), 9, finished, false), RankWatch::Verdict::fine);
  EXPECT_EQ(watch.look(std::chrono::seconds(1031), 9, finished, false),
            RankWatch::Verdict::stopped);
}

TEST(RankWatch, TheFirstStepsMayLoadCode) {
  RankWatch watch({.exchange = std::chrono::seconds(20), .first_steps = 2});
  const std::vector<std::uint64_t> finished{0, 0};
  for (const std::uint64_t step : {1, 2}) {
    const std::chrono::seconds start(10000 * static_cast<int>(step));
    EXPECT_EQ(watch.look(start, step, finished, false), RankWatch::Verdict::fine);
    EXPECT_EQ(watch.look(start + std::chrono::seconds(600), step, finished, false),
              RankWatch::Verdict::fine);
    EXPECT_EQ(watch.look(start + std::chrono::seconds(601), step, finished, false),
              RankWatch::Verdict::stopped);
  }
}

TEST(RankWatch, ARankThatDoesNotLeaveAnAbortedStepIsStuckOnce) {
  RankWatch watch(kWatchLimits);
  const std::vector<std::uint64_t> finished{3, 4};
  EXPECT_EQ(watch.look(std::chrono::seconds(1), 5, finished, false), RankWatch::Verdict::fine);
  EXPECT_EQ(watch.look(std::chrono::seconds(2), 5, finished, true), RankWatch::Verdict::fine);
  EXPECT_EQ(watch.look(std::chrono::seconds(4), 5, finished, true), RankWatch::Verdict::fine);
  EXPECT_EQ(watch.look(std::chrono::seconds(5), 5, finished, true), RankWatch::Verdict::stuck);
  EXPECT_EQ(watch.look(std::chrono::seconds(9), 5, finished, true), RankWatch::Verdict::fine);
}

// Four ranks of a CPU that sum rows, five times a step.
class WatchedRanks {
 public:
  /// ends: a stuck rank ends the process, as in a server.
  explicit WatchedRanks(const std::function<void(std::int32_t, Faults&)>& change,
                        bool ends = false) {
    std::vector<std::unique_ptr<Communicator>> all;
    for (auto& inner : make_host_communicators(4)) {
      Faults faults;
      change(inner->rank(), faults);
      all.push_back(std::make_unique<FaultyCommunicator>(std::move(inner), faults));
    }
    RankGroupOptions options;
    options.limits = kWatchLimits;
    options.look_every = std::chrono::milliseconds(1);
    options.now = [this] { return RankWatch::Time(std::chrono::seconds(now_.load())); };
    if (!ends) {
      options.on_stuck = [this](const Error& error) {
        const std::lock_guard lock(guard_);
        stuck_ = error;
      };
    }
    group_ = std::make_unique<RankGroup>(std::move(all), std::move(options));
  }
  Result<void> step() {
    return group_->run_step([this](std::int32_t r) -> Result<void> {
      Arena tensors, control;
      const auto backend = std::move(*make_backend(Device::cpu));
      OpsContext ops;
      ops.backend = backend.get();
      ops.communicator = &group_->communicator(r);
      ops.tensors = &tensors;
      ops.control = &control;
      const MutableRowsView out = alloc_rows(tensors, 2, 8);
      for (int i = 0; i < 5; ++i) {
        const MutableRowsView partial = alloc_partial(ops, 2, 8);
        std::fill_n(reinterpret_cast<float*>(partial.data), 2 * partial.row_stride, 1.0f);
        sum_rows(ops, {.partial = constant(partial), .out = out});
      }
      return group_->communicator(r).status();
    });
  }
  RankGroup& group() { return *group_; }
  void let_pass(int more) { now_ += more; }
  std::optional<Error> stuck() {
    const std::lock_guard lock(guard_);
    return stuck_;
  }

 private:
  std::atomic<int> now_ = 0;  // seconds
  std::mutex guard_;
  std::optional<Error> stuck_;
  std::unique_ptr<RankGroup> group_;
};

TEST(RankGroup, HealthyStepsAreNotStopped) {
  WatchedRanks ranks([](std::int32_t r, Faults& f) {
    f.seed = static_cast<std::uint64_t>(r);
    f.most_delay = 50;
  });
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(ranks.step().ok());
    ranks.let_pass(1000);  // between steps
  }
  EXPECT_EQ(ranks.group().communicator(3).finished().value(), 250u);
}

// Rank 2 stops before its fourth exchange, and comes back only after the watchdog has given it up.
TEST(RankGroup, ARankThatStallsEndsTheStepAndIsNamed) {
  std::latch until(1);
  WatchedRanks ranks([&](std::int32_t r, Faults& f) {
    if (r == 2) f.stall = 3, f.stalled = &until;
  });
  const auto waits_for_rank_2 = [&] {
    for (std::int32_t r = 0; r < 4; ++r) {
      if (ranks.group().communicator(r).finished().value() < 3) return false;
    }
    return true;
  };
  std::jthread clock([&] {
    while (!waits_for_rank_2()) std::this_thread::yield();
    while (!ranks.stuck()) {
      ranks.let_pass(21);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    until.count_down();
  });
  const Result<void> ok = ranks.step();
  ASSERT_FALSE(ok.ok());
  EXPECT_EQ(ok.error().message(),
            "step 1: wanted an exchange in 20 s, got rank 0 after exchange 3, rank 1 after "
            "exchange 3, rank 2 after exchange 3, rank 3 after exchange 3; a rank's thread or GPU "
            "has stopped");
  EXPECT_THAT(ranks.stuck()->message(), HasSubstr("rank 2 in step 1 did not stop within 2 s"));
  EXPECT_EQ(ranks.step().error().message(), ok.error().message());
}

// A rank that never comes back cannot be joined, so the process ends with one line.
TEST(RankGroupDeathTest, ARankThatNeverComesBackEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [] {
    std::latch never(1);
    WatchedRanks ranks(
        [&](std::int32_t r, Faults& f) {
          if (r == 2) f.stall = 3, f.stalled = &never;
        },
        true);
    const std::jthread clock([&] {
      while (true) {
        ranks.let_pass(21);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    static_cast<void>(ranks.step());
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(kRanksFailed),
              "^lathe: step 1: wanted an exchange in 20 s, got .*; rank 2 in step 1 did not stop "
              "within 2 s; a rank's thread or GPU has stopped\n$");
}

// The abort ends the others' waits, so nothing is stuck.
TEST(RankGroup, ARankThatThrowsEndsTheStepAtOnce) {
  WatchedRanks ranks([](std::int32_t r, Faults& f) { f.end_thread = r == 1 ? 2 : -1; });
  const Result<void> ok = ranks.step();
  ASSERT_FALSE(ok.ok());
  EXPECT_THAT(ok.error().message(), HasSubstr("rank 1: wanted a thread that works"));
  EXPECT_FALSE(ranks.stuck());
}

// Between steps on the ranks' threads; the watchdog looks after both kinds.
TEST(RankGroup, StepsHereRunInTheCallersThread) {
  WatchedRanks ranks([](std::int32_t, Faults&) {});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(ranks.step().ok());
    std::vector<std::int32_t> order;
    const auto ok = ranks.group().run_step_here([&](std::int32_t r) -> Result<void> {
      order.push_back(r);
      if (r < 2) return {};
      return Error{ErrorCode::device, fmt::format("rank {}", r), "a step", "none", ""};
    });
    EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3));
    ASSERT_FALSE(ok.ok());
    EXPECT_EQ(ok.error().field, "rank 2");
  }
}

TEST(RankGroup, AStepHereThatStallsIsNamed) {
  WatchedRanks ranks([](std::int32_t, Faults&) {});
  const auto ok = ranks.group().run_step_here([&](std::int32_t r) -> Result<void> {
    while (r == 1 && !ranks.stuck()) {
      ranks.let_pass(21);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  });
  ASSERT_FALSE(ok.ok());
  EXPECT_THAT(ok.error().message(), HasSubstr("step 1: wanted an exchange in 20 s"));
  EXPECT_THAT(ranks.stuck()->message(), HasSubstr("; rank 1 in step 1 did not stop"));
}

}  // namespace
}  // namespace lathe
