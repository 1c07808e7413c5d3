#include "attn/work_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/test_scale.h"

namespace lathe {
namespace {

// Checks that each key of each row is in exactly one item, that splits are numbered in the order of
// keys, and that consecutive workers have consecutive items.
void expect_covers(const WorkListView& v, const KeyRanges& ranges, const WorkOptions& options) {
  ASSERT_EQ(v.row_items.size(), ranges.counts.size() + 1);
  ASSERT_EQ(v.worker_items.size(), static_cast<std::size_t>(options.workers) + 1);
  ASSERT_EQ(v.row_items.back(), std::ssize(v.items));
  ASSERT_EQ(v.worker_items.front(), 0);
  ASSERT_EQ(v.worker_items.back(), std::ssize(v.items));
  ASSERT_TRUE(std::ranges::is_sorted(v.worker_items));
  for (std::size_t r = 0; r < ranges.counts.size(); ++r) {
    std::int64_t key = ranges.firsts.empty() ? 0 : ranges.firsts[r];
    const std::int64_t end = key + ranges.counts[r];
    std::int32_t split = 0;
    for (std::int64_t i = v.row_items[r]; i < v.row_items[r + 1]; ++i, ++split) {
      const WorkItem& item = v.items[static_cast<std::size_t>(i)];
      ASSERT_EQ(item.row, static_cast<std::int32_t>(r));
      ASSERT_EQ(item.first, key);
      ASSERT_EQ(item.split, split);
      ASSERT_GT(item.count, 0);
      key += item.count;
      if (options.fixed_split > 0 && key < end) {
        ASSERT_EQ(item.count, options.fixed_split);
      }
    }
    ASSERT_EQ(key, end);
  }
}

TEST(WorkList, CoversEachKeyOnceForAnyNumberOfRows) {
  std::mt19937 rng(test_seed(3));
  for (std::int64_t rows : scaled({0, 1, 2, 7, 11622, 11623, 11673, 11674, 1000000})) {
    for (std::int32_t workers : {1, 2, 132, 1024}) {
      for (std::int32_t fixed : {0, 256}) {
        std::vector<std::int32_t> counts(static_cast<std::size_t>(rows));
        std::vector<std::int32_t> firsts(counts.size());
        for (auto& c : counts) c = rng() % 4 == 0 ? 0 : static_cast<std::int32_t>(rng() % 2000);
        for (auto& f : firsts) f = static_cast<std::int32_t>(rng() % 1000);
        const KeyRanges ranges{counts, rng() % 2 == 0 ? std::span(firsts) : std::span<int>()};
        const WorkOptions options{workers, 64, fixed};
        const auto list = make_work_list(ranges, options);
        ASSERT_TRUE(list.ok());
        expect_covers(list->view(), ranges, options);
        ASSERT_LE(std::ssize(list->items), max_work_items(rows, 2000, options));
        if (fixed != 0) continue;
        std::int64_t least = INT64_MAX, most = 0;
        for (std::size_t w = 0; w < static_cast<std::size_t>(workers); ++w) {
          std::int64_t blocks = 0;
          for (std::int64_t i = list->worker_items[w]; i < list->worker_items[w + 1]; ++i) {
            blocks += (list->items[static_cast<std::size_t>(i)].count + 63) / 64;
          }
          least = std::min(least, blocks);
          most = std::max(most, blocks);
        }
        ASSERT_LE(most - least, 1);
      }
    }
  }
}

TEST(WorkList, NoWorkIsLegal) {
  const std::vector<std::int32_t> zeros(5, 0);
  for (std::int32_t fixed : {0, 8}) {
    const auto list = make_work_list({zeros, {}}, {4, 64, fixed});
    ASSERT_TRUE(list.ok());
    EXPECT_TRUE(list->items.empty());
    EXPECT_EQ(list->worker_items, (std::vector<std::int64_t>(5, 0)));
    EXPECT_EQ(list->view().splits(4), 0);
  }
}

TEST(WorkList, KnownSchedule) {
  // Units of 256 keys: [4, 2, 1] over 4 workers; the first three get two each.
  const std::vector<std::int32_t> counts = {1000, 257, 256};
  const auto list = make_work_list({counts, {}}, {4, 256, 0});
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->items, (std::vector<WorkItem>{
                             {0, 0, 512, 0}, {0, 512, 488, 1}, {1, 0, 257, 0}, {2, 0, 256, 0}}));
  EXPECT_EQ(list->worker_items, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(WorkList, FixedSplitsDependOnTheRowAlone) {
  std::mt19937 rng(test_seed(5));
  std::vector<std::int32_t> counts(static_cast<std::size_t>(100 * test_scale()));
  for (auto& c : counts) c = static_cast<std::int32_t>(rng() % 5000);
  const auto all = make_work_list({counts, {}}, {7, 64, 512});
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const auto alone = make_work_list({std::span(counts).subspan(r, 1), {}}, {3, 64, 512});
    ASSERT_EQ(alone->view().splits(0), all->view().splits(static_cast<std::int64_t>(r)));
    for (std::size_t i = 0; i < alone->items.size(); ++i) {
      WorkItem wanted = alone->items[i];
      wanted.row = static_cast<std::int32_t>(r);
      ASSERT_EQ(all->items[static_cast<std::size_t>(all->row_items[r]) + i], wanted);
    }
  }
}

TEST(WorkList, Errors) {
  const std::vector<std::int32_t> counts = {10, -1};
  EXPECT_EQ(make_work_list({counts, {}}, {}).error().field, "counts[1]");
  EXPECT_FALSE(make_work_list({}, {.workers = 0}).ok());
  EXPECT_FALSE(make_work_list({}, {.block = 0}).ok());
  const std::vector<std::int32_t> one = {1000};
  std::vector<WorkItem> items(1);
  std::vector<std::int64_t> row_items(2), worker_items(3);
  const auto full = plan_work({one, {}}, {2, 64, 0}, {items, row_items, worker_items});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::exhausted);
  EXPECT_EQ(full.error().field, "items");
}

}  // namespace
}  // namespace lathe
