#include "step/prefix_groups.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "plan/planner.h"
#include "plan/test/described_test_kernels.h"
#include "step/prefix_sizes.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;

constexpr std::int32_t kPage = 16;

/// Page lists of requests, and the lists that find() makes of them.
struct Found {
  std::vector<std::vector<PageId>> pages;
  std::vector<std::int32_t> rows;  // [requests]
  std::vector<std::int32_t> row_requests, lists;
  SharedPrefixes prefixes;
  PrefixSavings savings;

  explicit Found(const std::vector<std::vector<int>>& all, const PrefixSharing& sharing,
                 std::vector<std::int32_t> rows_of = {})
      : rows(std::move(rows_of)) {
    rows.resize(all.size(), 1);
    std::vector<PrefixRequest> requests;
    pages.reserve(all.size());
    for (std::size_t r = 0; r < all.size(); ++r) {
      pages.emplace_back(all[r].begin(), all[r].end());
      requests.push_back({pages.back(), static_cast<std::int32_t>(row_requests.size()), rows[r]});
      row_requests.insert(row_requests.end(), static_cast<std::size_t>(rows[r]),
                          static_cast<std::int32_t>(r));
    }
    const auto n = std::ssize(all), row_count = std::ssize(row_requests);
    lists.assign(static_cast<std::size_t>(PrefixLists<std::int32_t>::size(n, row_count)), -77);
    PrefixGrouper grouper(sharing, kPage, n);
    prefixes = grouper.find(requests, row_requests, lists);
    savings = grouper.savings();
  }
  PrefixLists<std::int32_t> view() {
    return {lists.data(), std::ssize(pages), std::ssize(row_requests)};
  }
  /// Own keys begin there; checks that the row's groups have all keys before, of its own pages.
  std::int32_t own_begin(std::int32_t row) {
    const auto v = view();
    const auto request = static_cast<std::size_t>(row_requests[static_cast<std::size_t>(row)]);
    std::int32_t key = 0;
    for (std::int64_t level = 0; level < kPrefixLevels; ++level) {
      const std::int32_t* part = v.parts + 2 * (row * kPrefixLevels + level);
      if (part[0] < 0) break;
      const std::int32_t g = part[1];
      EXPECT_EQ(v.slot_rows[part[0]], row);
      EXPECT_GE(part[0], v.indptr[g]);
      EXPECT_LT(part[0], v.indptr[g + 1]);
      EXPECT_EQ(v.begins[g], key);
      EXPECT_GT(v.ends[g], key);
      const auto& table = pages[static_cast<std::size_t>(v.tables[g])];
      for (; key < v.ends[g]; key += kPage) {
        const auto page = static_cast<std::size_t>(key / kPage);
        EXPECT_EQ(pages[request].at(page), table.at(page));
      }
    }
    EXPECT_EQ(v.own_begins[request], key);
    return key;
  }
  std::vector<std::int32_t> own_begins() {
    std::vector<std::int32_t> all;
    std::int32_t row = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::int32_t j = 0; j < rows[r]; ++j, ++row) {
        const std::int32_t begin = prefixes.empty() ? 0 : own_begin(row);
        if (j == 0) all.push_back(begin);
      }
    }
    return all;
  }
};

// Every key that is saved counts, and groups cost nothing.
constexpr PrefixSharing kFree = {.on = true, .key_ps = 1};

TEST(PrefixGroups, OneGroup) {
  Found f({{1, 2, 3}, {1, 2, 9, 8}, {5}, {1, 2}, {}}, kFree);
  EXPECT_THAT(f.own_begins(), ElementsAre(32, 32, 0, 32, 0));
  EXPECT_EQ(f.prefixes.size, PrefixSize::few);
  EXPECT_EQ(f.savings.groups, 1);
  EXPECT_EQ(f.savings.shared_keys, 96);
  EXPECT_EQ(f.savings.read_keys, 32);
}

TEST(PrefixGroups, NoneWithoutCommonPages) {
  EXPECT_TRUE(Found({{1, 2}, {2, 1}, {3}}, kFree).prefixes.empty());
  EXPECT_TRUE(Found({}, kFree).prefixes.empty());
  EXPECT_TRUE(Found({{}, {}}, kFree).prefixes.empty());
  EXPECT_TRUE(Found({{1}, {1}}, {.key_ps = 1}).prefixes.empty());  // off
}

TEST(PrefixGroups, Nested) {
  // Four share page 1, three of them 2 and 3, and two of those 4.
  Found f({{1, 2, 3, 4, 5}, {1, 7}, {1, 2, 3, 4}, {1, 2, 3, 9}, {6}, {6, 1}}, kFree,
          {1, 2, 1, 3, 1, 1});
  EXPECT_THAT(f.own_begins(), ElementsAre(64, 16, 64, 48, 16, 16));
  EXPECT_EQ(f.savings.groups, 4);
}

// A group above another one only pays for the requests that are not in the latter.
TEST(PrefixGroups, SkipsLevelsThatSaveLittle) {
  std::vector<std::vector<int>> pages(40, {1, 2, 3, 4});
  pages.push_back({1, 8});
  const PrefixSharing costly = {.on = true, .key_ps = 10, .row_ps = 100};
  Found f(pages, costly);
  EXPECT_EQ(f.savings.groups, 1);
  auto begins = f.own_begins();
  EXPECT_EQ(begins.front(), 64);
  EXPECT_EQ(begins.back(), 0);
}

// Savings must exceed costs by a fifth.
TEST(PrefixGroups, CostsDecide) {
  const std::vector<std::vector<int>> two = {{1, 2}, {1, 2}};
  // Saves one of two reads of 32 keys, 320 in all.
  const auto with = [](std::int64_t row_key, std::int64_t row, std::int64_t launch) {
    return PrefixSharing{
        .on = true, .key_ps = 10, .row_key_ps = row_key, .row_ps = row, .launch_ps = launch};
  };
  EXPECT_FALSE(Found(two, with(0, 133, 0)).prefixes.empty());  // 266 and a fifth
  EXPECT_TRUE(Found(two, with(0, 134, 0)).prefixes.empty());
  EXPECT_FALSE(Found(two, with(4, 5, 0)).prefixes.empty());
  EXPECT_TRUE(Found(two, with(4, 6, 0)).prefixes.empty());
  EXPECT_FALSE(Found(two, with(0, 100, 66)).prefixes.empty());
  EXPECT_TRUE(Found(two, with(0, 100, 67)).prefixes.empty());
}

// One H200's measured calls (bench/notes/gqa/02-shared-prefixes.md): groups where they were at
// least 1.2 times as fast, and none where they were slower.
TEST(PrefixGroups, ChoosesAsMeasured) {
  const auto shares = [](LayoutKind layout, std::int32_t requests, std::int32_t rows,
                         std::int32_t keys) {
    Capability kernel = testing::able("shares");
    kernel.shared_prefixes = true;
    AttentionProblem llama = gqa_problem(32, 8, 128);
    PlanRequest request;
    request.kv_dtype = layout == LayoutKind::gqa_fp8 ? "fp8_e4m3" : "bf16";
    request.max_running_requests = 512;
    const auto plan = make_plan(llama, testing::kH200, request, testing::with(kernel));
    EXPECT_TRUE(plan.ok());
    PrefixGrouper grouper(plan->prefixes, 64, requests);
    const std::vector<PageId> pages(static_cast<std::size_t>(keys / 64), PageId(1));
    std::vector<PrefixRequest> all;
    std::vector<std::int32_t> row_requests;
    for (std::int32_t r = 0; r < requests; ++r) {
      all.push_back({pages, r * rows, rows});
      row_requests.insert(row_requests.end(), static_cast<std::size_t>(rows), r);
    }
    std::vector<std::int32_t> lists(static_cast<std::size_t>(
        PrefixLists<std::int32_t>::size(requests, std::ssize(row_requests))));
    return !grouper.find(all, row_requests, lists).empty();
  };
  EXPECT_TRUE(shares(LayoutKind::gqa_bf16, 512, 1, 704));
  EXPECT_TRUE(shares(LayoutKind::gqa_bf16, 512, 1, 8192));
  EXPECT_TRUE(shares(LayoutKind::gqa_bf16, 64, 1, 8192));
  EXPECT_TRUE(shares(LayoutKind::gqa_fp8, 512, 1, 704));
  EXPECT_TRUE(shares(LayoutKind::gqa_fp8, 512, 1, 8192));
  EXPECT_FALSE(shares(LayoutKind::gqa_bf16, 64, 1, 704));
  EXPECT_FALSE(shares(LayoutKind::gqa_bf16, 16, 1, 704));
  EXPECT_FALSE(shares(LayoutKind::gqa_bf16, 4, 1, 8192));
  EXPECT_FALSE(shares(LayoutKind::gqa_bf16, 64, 4, 704));
}

TEST(PrefixGroups, SizeFollowsTheLargestGroup) {
  const std::vector<std::vector<int>> all(16, {1});
  PrefixSharing sharing = kFree;
  sharing.row_heads = 4;
  EXPECT_EQ(Found(all, sharing).prefixes.size, PrefixSize::few);
  sharing.row_heads = 5;
  EXPECT_EQ(Found(all, sharing).prefixes.size, PrefixSize::many);
}

// Tables that branch at every page, and more groups than a step may have.
TEST(PrefixGroups, BoundedTrees) {
  std::vector<std::vector<int>> comb, pairs;
  for (int r = 0; r < 300; ++r) {
    std::vector<int> pages;
    for (int i = 0; i < r; ++i) pages.push_back(i);
    pages.push_back(1000 + r);
    comb.push_back(pages);
    pairs.push_back({r / 2});
  }
  Found all(comb, kFree), many(pairs, kFree);
  EXPECT_LE(all.savings.groups, kPrefixGroups);
  EXPECT_EQ(many.savings.groups, kPrefixGroups);
  all.own_begins();
  many.own_begins();
}

// Random trees: every list is consistent, and without costs no pair of requests that begins with
// the same page is left alone while groups and levels last.
TEST(PrefixGroups, RandomTrees) {
  for (int i = 0; i < 200 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(static_cast<std::uint32_t>(i));
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937 rng(seed);
    const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
    std::vector<std::vector<int>> pages;
    std::vector<std::int32_t> rows;
    const int count = 2 + below(20);
    for (int r = 0, next = 0; r < count; ++r) {
      std::vector<int> list;
      if (r > 0 && below(4) > 0) {
        const auto& of = pages[static_cast<std::size_t>(below(r))];
        list.assign(of.begin(), of.begin() + below(static_cast<int>(of.size()) + 1));
      }
      for (int n = below(6); n > 0; --n) list.push_back(next++);
      pages.push_back(list);
      rows.push_back(1 + below(4));
    }
    Found f(pages, kFree, rows);
    const auto begins = f.own_begins();
    if (f.savings.groups == kPrefixGroups) continue;
    for (std::size_t a = 0; a < pages.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (pages[a].empty() || pages[b].empty() || pages[a][0] != pages[b][0]) continue;
        EXPECT_GT(begins[a], 0) << a << " and " << b;
      }
    }
  }
}

TEST(PrefixGroups, SameListsAgain) {
  const std::vector<std::vector<int>> all = {{1, 2, 3}, {4}, {1, 2, 5}, {1, 2, 3, 6}, {4, 1}};
  EXPECT_EQ(Found(all, kFree).lists, Found(all, kFree).lists);
}

// A plan budgets a recording for each size that a step can have. Steps have rows that share all
// their keys in groups of some size, at random costs.
TEST(PrefixGroups, SizesAreThoseOfPlans) {
  std::mt19937 random(test_seed(41));
  const auto pick = [&](int first, int last) {
    return std::uniform_int_distribution(first, last)(random);
  };
  int few = 0, many = 0, expected_few = 0, expected_many = 0;
  for (int i = 0; i < 4000 * test_scale(); ++i) {
    PrefixSharing sharing{.on = true, .key_ps = 1000};
    sharing.row_heads = 1 << pick(0, 6);
    sharing.row_key_ps = pick(0, 500);
    sharing.row_ps = pick(0, 100'000);
    sharing.launch_ps = pick(0, 5'000'000);
    const int rows = pick(1, 150), shared = pick(1, 12), block = 64 / sharing.row_heads;
    // Groups of whole blocks, of any size, or all rows.
    const int kind = pick(0, 2), size = kind == 0 ? block : kind == 1 ? pick(1, rows) : rows;
    std::vector<std::vector<int>> pages(static_cast<std::size_t>(rows));
    for (int r = 0; r < rows; ++r) {
      for (int p = 0; p < shared; ++p) {
        pages[static_cast<std::size_t>(r)].push_back(100 * (r / size) + p);
      }
    }
    const Found found(pages, sharing);
    const PrefixSizes sizes = prefix_sizes(sharing, rows, shared * kPage);
    SCOPED_TRACE(fmt::format("case {}: {} rows in groups of {}, {} heads", i, rows, size,
                             sharing.row_heads));
    EXPECT_TRUE(sizes.few || found.prefixes.size != PrefixSize::few);
    EXPECT_TRUE(sizes.many || found.prefixes.size != PrefixSize::many);
    if (kind == 0 && rows % size == 0 && rows / size <= kPrefixGroups && size > 1) {
      EXPECT_EQ(found.prefixes.size == PrefixSize::few, sizes.few);
    }
    if (kind == 2 && rows % block == 0 && rows > block) {
      EXPECT_EQ(found.prefixes.size == PrefixSize::many, sizes.many);
    }
    few += found.prefixes.size == PrefixSize::few;
    many += found.prefixes.size == PrefixSize::many;
    expected_few += sizes.few;
    expected_many += sizes.many;
  }
  std::printf("few in %d steps of %d that may, many in %d of %d\n", few, expected_few, many,
              expected_many);
  EXPECT_GT(few, 50);
  EXPECT_GT(many, 50);
}

}  // namespace
}  // namespace lathe
