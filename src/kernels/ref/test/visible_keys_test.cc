#include "kernels/ref/visible_keys.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using Keys = std::vector<std::int32_t>;
constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();

// 4 pages of 4 tokens; nothing here reads a byte of them.
KeySource paged(const std::vector<PageId>& table, std::int64_t width) {
  KeySource s;
  s.pool = ConstPoolView(nullptr, CacheLayout(LayoutKind::mla_bf16), 4, 4);
  s.page_table = table;
  s.table_width = width;
  return s;
}

TEST(RowPlaces, PositionsCountFromTheEndOfTheCache) {
  AttendArgs args;
  const Keys indptr{0, 2, 2, 3};
  const Keys lens{5, 7, 1};
  args.q_indptr = indptr;
  args.kv_lens = lens;
  const std::vector<RowPlace> places = row_places(args);
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[0].position, 3);
  EXPECT_EQ(places[1].position, 4);
  EXPECT_EQ(places[1].request, 0);
  EXPECT_EQ(places[2].position, 0);
  EXPECT_EQ(places[2].request, 2);
  EXPECT_EQ(places[2].row, 2);
}

TEST(VisibleKeys, CausalThroughThePageTable) {
  const std::vector<PageId> table{PageId(9), PageId(9), PageId(2), PageId(0)};
  const KeySource s = paged(table, 2);
  EXPECT_EQ(visible_keys(s, {0, 1, 0}, 0), (Keys{8}));
  EXPECT_EQ(visible_keys(s, {0, 1, 3}, 0), (Keys{8, 9, 10, 11}));
  EXPECT_EQ(visible_keys(s, {0, 1, 5}, 0), (Keys{8, 9, 10, 11, 0, 1}));
}

TEST(VisibleKeys, FromTheRowsFirstKey) {
  const std::vector<PageId> table{PageId(2), PageId(0)};
  const KeySource s = paged(table, 2);
  EXPECT_EQ(visible_keys(s, {0, 0, 5}, 5), (Keys{1}));
  EXPECT_EQ(visible_keys(s, {0, 0, 5}, 3), (Keys{11, 0, 1}));
  EXPECT_EQ(visible_keys(s, {0, 0, 5}, 0), (Keys{8, 9, 10, 11, 0, 1}));
  AttentionProblem p;
  EXPECT_EQ(p.first_key(1000), 0);
  p.window = 3;
  for (const std::int64_t position : {-1, 0, 2}) EXPECT_EQ(p.first_key(position), 0);
  EXPECT_EQ(p.first_key(3), 1);
  EXPECT_EQ(p.first_key(5), 3);
  p.chunked = true;
  for (const std::int64_t position : {-1, 0, 2}) EXPECT_EQ(p.first_key(position), 0);
  for (const std::int64_t position : {3, 4, 5}) EXPECT_EQ(p.first_key(position), 3);
  EXPECT_EQ(p.first_key(6), 6);
  p.window = kMax;
  EXPECT_EQ(p.first_key(1), 0);
}

TEST(VisibleKeys, PagesOutsideThePoolHoldNoKey) {
  const std::vector<PageId> table{PageId(-1), PageId(3), PageId(4), PageId(kMax), PageId(-kMax)};
  const KeySource s = paged(table, 5);
  EXPECT_EQ(visible_keys(s, {0, 0, 19}, 0), (Keys{12, 13, 14, 15}));
}

TEST(VisibleKeys, IndexListKeepsOrderAndDuplicatesAndDropsHoles) {
  KeySource s = paged({}, 0);
  const Keys list{-1, 15, 3, -1, 3, 16, -2, kMax, 0, -kMax - 1};
  s.indices = list;
  s.index_width = 5;
  EXPECT_EQ(visible_keys(s, {0, 0, 0}, 1), (Keys{15, 3, 3}));
  EXPECT_EQ(visible_keys(s, {1, 0, 0}, 1), (Keys{0}));
  const Keys lengths{2, 0};
  s.index_lengths = lengths;
  EXPECT_EQ(visible_keys(s, {0, 0, 0}, 0), (Keys{15}));
  EXPECT_EQ(visible_keys(s, {1, 0, 0}, 0), Keys{});
}

TEST(VisibleKeys, CompactRowsBoundTheIndex) {
  KeySource s;
  s.compact.rows = 2;
  const Keys list{1, 2, 0, -1};
  s.indices = list;
  s.index_width = 4;
  EXPECT_EQ(visible_keys(s, {}, 0), (Keys{1, 0}));
}

}  // namespace
}  // namespace lathe
