#include "layout/pages/index_lists.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/test_scale.h"
#include "layout/pages/test/page_lists_test_util.h"

namespace lathe {
namespace {

using layout_test::ids;
using layout_test::Lists;
using layout_test::spans;

TEST(IndexLists, ByHand) {
  // Pages of 4 tokens: request 0 has slots 20-23 and 8-11, request 1 none, request 2 0-3 and 28-31.
  const Lists lists = {{PageId(5), PageId(2)}, {}, {PageId(0), PageId(7)}};
  const auto s = spans(lists);
  const std::vector<std::int32_t> lengths = {3, 0, 4}, starts = {2, 0, 3};
  const auto ragged = ragged_slots(PageLists(s), {4, 8}, {lengths, starts});
  ASSERT_TRUE(ragged) << ragged.error().message();
  EXPECT_EQ(ragged->indptr, (std::vector<std::int64_t>{0, 3, 3, 7}));
  EXPECT_EQ(ids(ragged->items), (std::vector<int>{22, 23, 8, 3, 28, 29, 30}));
  EXPECT_EQ(ids(ragged->of(2)), (std::vector<int>{3, 28, 29, 30}));

  const auto table =
      slot_table(PageLists(s), {4, 8}, {lengths, starts}, {.multiple = 3, .requests = 4});
  ASSERT_TRUE(table);
  EXPECT_EQ(table->width, 6);
  EXPECT_EQ(ids(table->view().row(0)), (std::vector<int>{22, 23, 8, -1, -1, -1}));
  EXPECT_EQ(ids(table->view().row(1)), std::vector<int>(6, -1));
  EXPECT_EQ(ids(table->view().row(2)), (std::vector<int>{3, 28, 29, 30, -1, -1}));
  EXPECT_EQ(ids(table->view().row(3)), std::vector<int>(6, -1));

  const std::vector<std::int32_t> page_lengths = {5, 0, 1}, page_starts = {0, 0, 4};
  const auto pages = ragged_pages(PageLists(s), {4, 8}, {page_lengths, page_starts});
  ASSERT_TRUE(pages) << pages.error().message();
  EXPECT_EQ(pages->indptr, (std::vector<std::int64_t>{0, 2, 2, 3}));
  EXPECT_EQ(ids(pages->items), (std::vector<int>{5, 2, 7}));
}

TEST(IndexLists, EmptyBatchAndZeroLengthOutsideThePages) {
  const auto none = ragged_slots(PageLists({}), {64, 8}, {});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->indptr, (std::vector<std::int64_t>{0}));
  const Lists lists = {{}};
  const auto s = spans(lists);
  const std::vector<std::int32_t> zero = {0}, far = {1000};
  EXPECT_TRUE(ragged_slots(PageLists(s), {64, 8}, {zero, far}));
}

TEST(IndexLists, ErrorsNameRequestAndIndex) {
  const Lists lists = {{PageId(1)}, {PageId(0), PageId(), PageId(9), PageId(3)}};
  const auto s = spans(lists);
  const PoolShape pool{4, 8};
  const auto message = [&](std::vector<std::int32_t> lengths, std::vector<std::int32_t> starts) {
    const auto r = ragged_slots(PageLists(s), pool, {lengths, starts});
    const auto t = slot_table(PageLists(s), pool, {lengths, starts});
    EXPECT_EQ(r.ok(), t.ok());
    return r ? std::string("ok") : r.error().message();
  };
  EXPECT_EQ(message({4, 4}, {}), "ok");
  EXPECT_EQ(message({4, 3}, {0, 12}), "ok");  // holes and unknown pages outside the range
  EXPECT_EQ(message({-1, 0}, {}), "lengths[0]: wanted 0 or more, got -1");
  EXPECT_EQ(message({0, 1}, {0, -3}), "starts[1]: wanted 0 or more, got -3");
  EXPECT_EQ(
      message({5, 0}, {}),
      "lengths[0]: wanted positions below 4 (1 pages of 4 tokens), got positions 0 to 4; give "
      "the request more pages");
  EXPECT_EQ(
      message({1, 0}, {4, 0}),
      "lengths[0]: wanted positions below 4 (1 pages of 4 tokens), got positions 4 to 4; give "
      "the request more pages");
  EXPECT_EQ(message({0, 5}, {}),
            "pages of request 1, index 1: wanted a page from 0 to 7, got -1; the range needs this "
            "page, and it is a hole");
  EXPECT_EQ(message({0, 2}, {0, 11}),
            "pages of request 1, index 2: wanted a page from 0 to 7, got 9");
  EXPECT_EQ(message({1}, {}), "lengths: wanted 2 entries, got 1; one per request");
  EXPECT_EQ(message({1, 1}, {0}), "starts: wanted 2 entries, or none, got 1; one per request");
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  EXPECT_NE(message({most, 0}, {most, 0}), "ok");

  const std::vector<std::int32_t> one = {1, 0}, off = {2, 0};
  EXPECT_EQ(ragged_pages(PageLists(s), pool, {one, off}).error().message(),
            "starts[0]: wanted a multiple of page_size 4, got 2; use ragged_slots() for other "
            "starts");
}

TEST(IndexLists, AgainstANaiveLoopForEveryPageSize) {
  std::mt19937 rng(test_seed(5));
  for (int i = 0; i < 256 * test_scale(); ++i) {
    const std::int32_t page = 1 + i % 256;
    const PoolShape pool{page, 40};
    Lists lists(1 + rng() % 5);
    std::vector<std::int32_t> lengths, starts, aligned, aligned_lengths;
    for (auto& row : lists) {
      row.resize(rng() % 6);
      for (PageId& p : row) p = PageId(static_cast<std::int32_t>(rng() % 40));
      const auto held = static_cast<std::int32_t>(row.size()) * page;
      starts.push_back(static_cast<std::int32_t>(rng() % static_cast<unsigned>(held + 1)));
      lengths.push_back(
          static_cast<std::int32_t>(rng() % static_cast<unsigned>(held - starts.back() + 1)));
      aligned.push_back(starts.back() / page * page);
    }
    const auto s = spans(lists);
    const auto slots = ragged_slots(PageLists(s), pool, {lengths, starts});
    const auto table = slot_table(PageLists(s), pool, {lengths, starts}, {.multiple = 7});
    const auto pages = ragged_pages(PageLists(s), pool, {lengths, aligned});
    ASSERT_TRUE(slots && table && pages);
    ASSERT_EQ(slots->requests(), static_cast<std::int64_t>(lists.size()));
    for (std::size_t r = 0; r < lists.size(); ++r) {
      const auto row = static_cast<std::int64_t>(r);
      ASSERT_EQ(slots->of(row).size(), static_cast<std::size_t>(lengths[r]));
      for (std::int32_t c = 0; c < table->width; ++c) {
        if (c >= lengths[r]) {
          ASSERT_TRUE(table->view().at(row, c).is_hole());
          continue;
        }
        const std::int32_t at = starts[r] + c;
        const Slot want(lists[r][static_cast<std::size_t>(at / page)].value * page + at % page);
        ASSERT_EQ(slots->of(row)[static_cast<std::size_t>(c)], want);
        ASSERT_EQ(table->view().at(row, c), want);
      }
      std::vector<PageId> naive;
      for (std::int32_t at = aligned[r]; at < aligned[r] + lengths[r]; at += page) {
        naive.push_back(lists[r][static_cast<std::size_t>(at / page)]);
      }
      const auto got = pages->of(row);
      ASSERT_EQ(std::vector<PageId>(got.begin(), got.end()), naive);
    }
  }
}

TEST(IndexLists, SlotsNearTheEndOfInt32) {
  const PoolShape pool{64, kMaxSlots / 64};
  const Lists lists = {{PageId(static_cast<std::int32_t>(pool.pages - 1))}};
  const auto s = spans(lists);
  const std::vector<std::int32_t> length = {64};
  const auto slots = ragged_slots(PageLists(s), pool, {length, {}});
  ASSERT_TRUE(slots);
  EXPECT_EQ(slots->items.back().value, pool.slots() - 1);
}

TEST(IndexLists, LocalPositionsToSlots) {
  const std::vector<PageId> pages = {PageId(5), PageId(), PageId(2), PageId(8)};
  const auto slots = [&](std::vector<int> at, std::int32_t length) {
    const std::vector<LocalPos> local(at.begin(), at.end());
    std::vector<Slot> out(local.size(), Slot(99));
    EXPECT_TRUE(local_to_slots(pages, {4, 8}, length, local, out));
    return ids(out);
  };
  EXPECT_EQ(slots({0, 3, 8, 11, 8}, 12), (std::vector<int>{20, 23, 8, 11, 8}));
  EXPECT_EQ(slots({-1, -2, 4, 7}, 12), (std::vector<int>{-1, -1, -1, -1}));
  EXPECT_EQ(slots({9, 10, 11}, 10), (std::vector<int>{9, -1, -1}));  // beyond the length
  EXPECT_EQ(slots({12, 16, 1 << 30}, 1 << 30),
            (std::vector<int>{-1, -1, -1}));  // page 8 of 8; beyond the list
  EXPECT_EQ(slots({0}, 0), (std::vector<int>{-1}));
  EXPECT_EQ(slots({}, 12), (std::vector<int>{}));

  const std::vector<LocalPos> two(2, LocalPos(0));
  std::vector<Slot> one(1, Slot(99));
  const auto r = local_to_slots(pages, {4, 8}, 12, two, one);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(), "out: wanted 2 slots, got 1; one per position");
  EXPECT_EQ(one[0], Slot(99));
}

}  // namespace
}  // namespace lathe
