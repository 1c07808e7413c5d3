// How latent calls are cut into parts: fixed parts, every key covered once, balanced threads.
#include "kernels/cpu/latent/latent_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "kernels/cpu/latent/test/latent_test_util.h"

namespace lathe {
namespace {

using latent_test::Scene;

TEST(LatentPlan, FixedPartsDoubleUpToTheFoldLength) {
  const LatentCuts cuts;
  const std::int64_t want[] = {0, 256, 512, 1024, 2048, 3072, 4096, 5120};
  for (std::int64_t part = 0; part < std::ssize(want); ++part) {
    EXPECT_EQ(cuts.begin(part), want[part]);
  }
  for (std::int64_t key = 0; key < 5120; ++key) {
    const std::int64_t part = cuts.part_of(key);
    ASSERT_LE(want[part], key);
    ASSERT_GT(want[part + 1], key);
  }
}

// Every key of a work tile is in exactly one task, whatever the cuts; a run has the same cuts as
// the whole request.
TEST(LatentPlan, PartsCoverTheKeys) {
  Scene s(CacheLayout(LayoutKind::mla_bf16), 64, 4, {{1, 1}});
  ThreadPool threads(3);
  std::int32_t len = 0;
  s.args.kv_lens = {&len, 1};
  for (const bool invariant : {false, true}) {
    s.args.execution = {&threads, nullptr, invariant};
    for (len = 1; len < 6000; len += 37) {
      const LatentPlan plan(s.args);
      std::vector<std::byte> lists(static_cast<std::size_t>(plan.list_bytes));
      plan.fill(s.args, lists.data());
      std::int64_t cost = 0;
      for (const LatentTask& task : plan.task_list(lists.data())) cost += task.cost;
      EXPECT_EQ(cost, std::int64_t{len} * 4);
      const LatentWorkTile& work_tile = plan.work_tile_list(lists.data())[0];
      EXPECT_LT(plan.part_begin(work_tile.parts - 1), len);
      EXPECT_GE(plan.part_begin(work_tile.parts), len);
    }
  }
  const LatentRun run{.first = 1024, .keys = 2048};
  len = 9000;
  const LatentPlan plan(s.args, &run);
  EXPECT_EQ(plan.parts_of(2048), 2);
  EXPECT_EQ(plan.part_begin(1), 1024);
}

// A single row of 512 keys or more gives two threads about equal work, if each task in the list's
// order goes to the first free thread.
TEST(LatentPlan, TwoThreadsShareOneRowEvenly) {
  Scene s(CacheLayout(LayoutKind::mla_bf16), 64, 16, {{1, 1}});
  ThreadPool threads(2);
  s.args.execution = {&threads, nullptr, true};
  for (std::int32_t len : {512, 1024, 1536, 2048, 2496, 3000, 3072, 4096, 5000, 10000}) {
    s.args.kv_lens = {&len, 1};
    const LatentPlan plan(s.args);
    std::vector<std::byte> lists(static_cast<std::size_t>(plan.list_bytes));
    plan.fill(s.args, lists.data());
    std::int64_t busy[2] = {0, 0};
    for (const LatentTask& task : plan.task_list(lists.data())) {
      (busy[0] <= busy[1] ? busy[0] : busy[1]) += task.cost;
    }
    EXPECT_LE(std::max(busy[0], busy[1]) * 9, (busy[0] + busy[1]) * 5) << len;  // 1.8 times
  }
}

}  // namespace
}  // namespace lathe
