#include "layout/pages/page_table.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/test_scale.h"
#include "layout/pages/test/page_lists_test_util.h"

namespace lathe {
namespace {

using layout_test::ids;
using layout_test::Lists;
using layout_test::spans;

Lists lists_of(const std::vector<std::vector<int>>& ids) {
  Lists out;
  for (const auto& row : ids) out.emplace_back(row.begin(), row.end());
  return out;
}

TEST(PageTable, PadsRowsWithHoles) {
  const Lists lists = lists_of({{4, 2, 7}, {}, {0}});
  const auto s = spans(lists);
  const auto t = page_table(PageLists(s), {64, 8}, {.multiple = 2});
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ(t->requests, 3);
  EXPECT_EQ(t->width, 4);
  EXPECT_EQ(ids(t->view().row(0)), (std::vector<int>{4, 2, 7, -1}));
  EXPECT_EQ(ids(t->view().row(1)), (std::vector<int>{-1, -1, -1, -1}));
  EXPECT_EQ(ids(t->view().row(2)), (std::vector<int>{0, -1, -1, -1}));
  EXPECT_EQ(t->view().at(0, 2), PageId(7));
}

TEST(PageTable, CsrGivesTheSameTable) {
  const std::vector<std::int64_t> indptr = {0, 3, 3, 4};
  const std::vector<PageId> pages = {PageId(4), PageId(2), PageId(7), PageId(0)};
  const auto lists = PageLists::csr(indptr, pages);
  ASSERT_TRUE(lists);
  EXPECT_EQ(lists->requests(), 3);
  const auto t = page_table(*lists, {64, 8});
  ASSERT_TRUE(t);
  EXPECT_EQ(ids(t->entries), (std::vector<int>{4, 2, 7, -1, -1, -1, 0, -1, -1}));
}

TEST(PageTable, NothingIsLegal) {
  const auto none = page_table(PageLists({}), {64, 8});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->requests, 0);
  const std::vector<std::int64_t> zero = {0};
  const auto csr = PageLists::csr(zero, {});
  ASSERT_TRUE(csr);
  EXPECT_EQ(csr->requests(), 0);
  const Lists empty = lists_of({{}, {}});
  const auto s = spans(empty);
  const auto t = page_table(PageLists(s), {64, 8}, {.multiple = 64});
  ASSERT_TRUE(t);
  EXPECT_EQ(t->requests, 2);
  EXPECT_EQ(t->width, 0);
}

TEST(PageTable, MultipleIsTheLcmInTokens) {
  const auto m = [](std::int32_t page, std::vector<std::int64_t> reads) {
    const auto r = table_multiple(page, reads);
    EXPECT_TRUE(r);
    return r ? *r : -1;
  };
  EXPECT_EQ(m(64, {}), 1);
  EXPECT_EQ(m(64, {128}), 2);
  EXPECT_EQ(m(64, {128, 4096}), 64);
  EXPECT_EQ(m(32, {128, 4096}), 128);
  EXPECT_EQ(m(256, {128}), 1);
  EXPECT_EQ(m(48, {128}), 8);      // 384 tokens are 3 reads and 8 pages
  EXPECT_EQ(m(64, {96, 128}), 6);  // 384 tokens
  EXPECT_EQ(m(1, {128}), 128);
  EXPECT_FALSE(table_multiple(0, {}));
  const std::vector<std::int64_t> zero = {128, 0};
  EXPECT_EQ(table_multiple(64, zero).error().field, "tokens_per_read[1]");
  const std::vector<std::int64_t> primes = {65521, 65519};
  EXPECT_EQ(table_multiple(64, primes).error().field, "tokens_per_read[1]");
}

TEST(PageTable, BadInputIsNamedAndChangesNothing) {
  const Lists lists = lists_of({{1}, {2, 8}, {-2}});
  const auto s = spans(lists);
  std::vector<PageId> buffer(16, PageId(77));
  const auto r = rebuild_page_table(PageLists(s), {64, 8}, {}, buffer);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(),
            "pages of request 1, index 1: wanted -1 or a page from 0 to 7, got 8");
  EXPECT_FALSE(page_table(PageLists(std::span(s).subspan(2)), {64, 8}));

  const auto good = PageLists(std::span(s).first(1));
  EXPECT_EQ(page_table(good, {64, 8}, {.multiple = 0}).error().field, "multiple");
  EXPECT_EQ(page_table(good, {64, 8}, {.multiple = 2, .width = 3}).error().field, "width");
  EXPECT_EQ(page_table(good, {64, 8}, {.width = -1}).error().field, "width");
  EXPECT_EQ(page_table(good, {64, 8}, {.requests = -1}).error().field, "requests");
  EXPECT_EQ(page_table(good, {0, 8}).error().field, "page_size");
  EXPECT_EQ(page_table(good, {64, 0}).error().field, "pages");
  const auto two = PageLists(std::span(s).first(2));
  EXPECT_EQ(page_table(two, {64, 9}, {.width = 1}).error().field, "width");
  EXPECT_EQ(page_table(two, {64, 9}, {.requests = 1}).error().field, "requests");

  const auto small = rebuild_page_table(two, {64, 9}, {.multiple = 16}, buffer);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, ErrorCode::exhausted);
  EXPECT_EQ(small.error().message(),
            "buffer: wanted 32 entries (2 requests x 16 pages), got 16; size it for the largest "
            "batch and context");
  EXPECT_EQ(buffer, std::vector<PageId>(16, PageId(77)));
}

TEST(PageTable, BadIndptr) {
  const std::vector<PageId> pages(4, PageId(0));
  const auto field = [&](std::vector<std::int64_t> indptr) {
    const auto r = PageLists::csr(indptr, pages);
    EXPECT_FALSE(r);
    return r ? std::string() : r.error().field;
  };
  EXPECT_EQ(field({}), "indptr");
  EXPECT_EQ(field({1, 2}), "indptr[0]");
  EXPECT_EQ(field({0, 3, 2}), "indptr[2]");
  EXPECT_EQ(field({0, 5}), "indptr[1]");
}

// A table for a captured CUDA graph: strides and rows are fixed while the batch grows and shrinks.
TEST(PageTable, RebuildInPlaceEqualsFreshBuild) {
  std::mt19937 rng(test_seed(11));
  std::vector<PageId> buffer(64 * 40, PageId(123456));
  const PoolShape pool{16, 500};
  for (int round = 0; round < 400 * test_scale(); ++round) {
    const bool fixed = round % 2 == 0;
    Lists lists(rng() % 33);
    for (auto& row : lists) {
      row.resize(rng() % 38);
      for (PageId& p : row) p = PageId(static_cast<std::int32_t>(rng() % 501) - 1);
    }
    const auto s = spans(lists);
    const TableOptions options =
        fixed ? TableOptions{.multiple = 8, .width = 40, .requests = 64}
              : TableOptions{.multiple = 1 + static_cast<std::int64_t>(rng() % 8)};
    const auto in_place = rebuild_page_table(PageLists(s), pool, options, buffer);
    const auto fresh = page_table(PageLists(s), pool, options);
    ASSERT_TRUE(in_place && fresh);
    ASSERT_EQ(in_place->data, buffer.data());
    ASSERT_EQ(in_place->requests, fixed ? 64 : static_cast<std::int64_t>(lists.size()));
    ASSERT_EQ(in_place->width, fresh->width);
    for (std::int64_t r = 0; r < in_place->requests; ++r) {
      for (std::int64_t c = 0; c < in_place->width; ++c) {
        const auto row = static_cast<std::size_t>(r), col = static_cast<std::size_t>(c);
        const bool there = row < lists.size() && col < lists[row].size();
        const PageId want = there ? lists[row][col] : PageId();
        ASSERT_EQ(in_place->at(r, c), want);
        ASSERT_EQ(fresh->view().at(r, c), want);
      }
    }
  }
}

TEST(PageTable, AMillionRequests) {
  const std::int64_t n = 1'000'000;
  std::vector<std::int64_t> indptr(static_cast<std::size_t>(n + 1));
  std::iota(indptr.begin(), indptr.end(), 0);
  std::vector<PageId> pages;
  for (std::int32_t i = 0; i < n; ++i) pages.emplace_back((i * 7) % 1000);
  const auto t = page_table(*PageLists::csr(indptr, pages), {64, 1000}, {.multiple = 4});
  ASSERT_TRUE(t);
  EXPECT_EQ(t->entries.size(), 4'000'000u);
  for (std::int64_t r : {std::int64_t{0}, std::int64_t{1}, n / 2, n - 1}) {
    EXPECT_EQ(ids(t->view().row(r)),
              (std::vector<int>{static_cast<int>(r * 7 % 1000), -1, -1, -1}));
  }
}

}  // namespace
}  // namespace lathe
