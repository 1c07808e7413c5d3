#include "attn/index_transform.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/test_scale.h"

namespace lathe {
namespace {

std::vector<LocalPos> locals(std::initializer_list<int> values) {
  std::vector<LocalPos> out;
  for (int v : values) out.emplace_back(v);
  return out;
}
template <class Index>
std::vector<int> values(const std::vector<Index>& list) {
  std::vector<int> out;
  for (Index i : list) out.push_back(i.value);
  return out;
}

PageTable table_of(std::int64_t width, std::initializer_list<int> pages) {
  PageTable t;
  for (int p : pages) t.entries.emplace_back(p);
  t.width = width;
  t.requests = std::ssize(t.entries) / width;
  return t;
}

TEST(IndexTransform, SlotsOfEveryPageSize) {
  std::mt19937 rng(test_seed(1));
  for (std::int32_t page_size : scaled({1, 16, 64, 96})) {
    const PoolShape pool{page_size, 50};
    PageTable t;
    t.requests = 3;
    t.width = 12;
    for (int i = 0; i < 36; ++i) t.entries.emplace_back(static_cast<int>(rng() % 50));
    const std::vector<std::int32_t> request = {2, 0, 1, 1};
    const std::int64_t width = 37;
    std::vector<LocalPos> list;
    for (std::int64_t i = 0; i < 4 * width; ++i) {
      list.emplace_back(static_cast<int>(rng() % static_cast<unsigned>(12 * page_size)));
    }
    std::vector<Slot> out(list.size(), Slot(-77));
    ASSERT_TRUE(local_to_slots({list, width, {}}, request, t.view(), pool, out).ok());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::int32_t r = request[i / 37];
      const PageId page = t.view().at(r, list[i].value / page_size);
      EXPECT_EQ(out[i].value, page.value * page_size + list[i].value % page_size);
    }
  }
}

TEST(IndexTransform, HolesAndStrayPositionsBecomeHoles) {
  const PageTable t = table_of(3, {4, -1, 9, 1, 2, 3});
  const auto list = locals({0, 3, 4, 8, 12, -1, -5, 11, 0, 3, 4, 8, 12, -1, -5, 7});
  const std::vector<std::int32_t> request = {0, -1};
  const std::vector<std::int32_t> lens = {9, 9};
  std::vector<Slot> out(16, Slot(-77));
  // Page 9 is outside the pool of 9 pages; position 11 is beyond the row's 9 keys.
  ASSERT_TRUE(local_to_slots({list, 8, lens}, request, t.view(), {4, 9}, out).ok());
  EXPECT_EQ(values(out), (std::vector<int>{16, 19, -1, -1, -1, -1, -1, -1,  //
                                           -1, -1, -1, -1, -1, -1, -1, -1}));
  ASSERT_TRUE(local_to_slots({list, 8, {}}, request, t.view(), {4, 10}, out).ok());
  EXPECT_EQ(out[7].value, 39);
}

TEST(IndexTransform, RaggedRowsAddNoOffsetToHoles) {
  const auto list = locals({0, -1, 3, 9, 0, -1, 3, 9});
  const std::vector<std::int32_t> offset = {100, 0};
  const std::vector<std::int32_t> lens = {4, 10};
  std::vector<RaggedRow> out(8, RaggedRow(-77));
  ASSERT_TRUE(local_to_ragged({list, 4, lens}, offset, 103, out).ok());
  EXPECT_EQ(values(out), (std::vector<int>{100, -1, -1, -1, 0, -1, 3, 9}));
}

TEST(IndexTransform, WrongCountsAreErrors) {
  const PageTable t = table_of(1, {0});
  const auto list = locals({0, 0});
  std::vector<Slot> out(2);
  std::vector<RaggedRow> ragged(1);
  const std::vector<std::int32_t> one = {0};
  const std::vector<std::int32_t> stranger = {1, 0};
  EXPECT_FALSE(local_to_slots({list, 1, {}}, one, t.view(), {4, 1}, out).ok());
  EXPECT_FALSE(local_to_slots({list, 1, {}}, stranger, t.view(), {4, 1}, out).ok());
  EXPECT_FALSE(local_to_slots({list, 2, {}}, one, t.view(), {0, 1}, out).ok());
  EXPECT_FALSE(local_to_ragged({list, 2, {}}, one, 5, ragged).ok());
}

TEST(IndexTransform, AMillionRowsAndNone) {
  const PageTable t = table_of(2, {3, 1});
  const std::int64_t rows = 1 << 20;
  std::vector<LocalPos> list(static_cast<std::size_t>(2 * rows));
  for (std::int64_t i = 0; i < rows; ++i) {
    list[static_cast<std::size_t>(2 * i)] = LocalPos(static_cast<int>(i % 9));
  }
  const std::vector<std::int32_t> request(static_cast<std::size_t>(rows), 0);
  std::vector<Slot> out(list.size(), Slot(-77));
  ASSERT_TRUE(local_to_slots({list, 2, {}}, request, t.view(), {4, 4}, out).ok());
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t p = i % 9;
    const std::int64_t wanted = p < 4 ? 12 + p : p < 8 ? p : -1;
    ASSERT_EQ(out[static_cast<std::size_t>(2 * i)].value, wanted);
    ASSERT_TRUE(out[static_cast<std::size_t>(2 * i + 1)].is_hole());
  }
  EXPECT_TRUE(local_to_slots({{}, 2, {}}, {}, t.view(), {4, 4}, {}).ok());
}

struct Combined {
  std::vector<RaggedRow> out;
  std::vector<std::int32_t> lengths;
};
Combined combine(const CombineLists& c) {
  const auto width = combined_width(c.entry_width, c.window, c.multiple);
  Combined o{
      std::vector<RaggedRow>(c.positions.size() * static_cast<std::size_t>(width), RaggedRow(-77)),
      std::vector<std::int32_t>(c.positions.size(), -77)};
  const auto done = combine_index_lists(c, o.out, o.lengths);
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return o;
}

TEST(CombineLists, AHoleStaysAHole) {
  // A token without entries has -1. Adding the base to it would give row base - 1, which is
  // another request's key.
  const auto positions = locals({2, 11});
  const auto entries = locals({-1, -1, -1, 2, -1, 0});
  const std::vector<std::int32_t> base = {1000, 1000}, window_base = {2000, 2000}, start = {0, 0};
  CombineLists c{positions, 4, 4, entries, 3, false, base, window_base, start, 3000, 4};
  const Combined o = combine(c);
  EXPECT_EQ(values(o.out), (std::vector<int>{2000, 2001, 2002, -1, -1, -1, -1, -1,  //
                                             1002, -1, 1000, 2008, 2009, 2010, 2011, -1}));
  EXPECT_EQ(o.lengths, (std::vector<std::int32_t>{3, 7}));
}

TEST(CombineLists, LengthsAreNotClampedAndInvisibleEntriesAreHoles) {
  // Position 6 sees only entry 0; a padding row sees nothing; with window 0 only entries are left.
  const auto positions = locals({6, -1, 7});
  const auto entries = locals({1, 0, 0, 1, 1, 0});
  const std::vector<std::int32_t> base = {10, 10, 10}, window_base = {0, 0, 0}, start = {0, 0, 0};
  CombineLists c{positions, 0, 4, entries, 2, false, base, window_base, start, 100, 1};
  const Combined o = combine(c);
  EXPECT_EQ(values(o.out), (std::vector<int>{-1, 10, -1, -1, 11, 10}));
  EXPECT_EQ(o.lengths, (std::vector<std::int32_t>{2, 0, 2}));
}

TEST(CombineLists, AllEntriesAndTheWindowsStart) {
  for (std::int32_t ratio : {1, 4, 128}) {
    for (int p : {0, ratio - 2, ratio - 1, ratio, 2 * ratio - 1, 300}) {
      if (p < 0) continue;
      const auto positions = locals({p});
      const std::int32_t start_at = std::max(0, p - 127);
      const std::vector<std::int32_t> base = {5}, window_base = {400}, start = {start_at};
      CombineLists c{positions, 128, ratio, {}, 301, true, base, window_base, start, 600, 128};
      const Combined o = combine(c);
      const int entries = (p + 1) / ratio;
      const int window = std::min(p + 1, 128);
      ASSERT_EQ(o.out.size() % 128, 0u);
      ASSERT_EQ(o.lengths[0], entries + window);
      for (int i = 0; i < entries; ++i) ASSERT_EQ(o.out[static_cast<std::size_t>(i)].value, 5 + i);
      for (int i = 0; i < window; ++i) {
        ASSERT_EQ(o.out[static_cast<std::size_t>(entries + i)].value, 400 + i);
      }
      for (std::size_t i = static_cast<std::size_t>(entries + window); i < o.out.size(); ++i) {
        ASSERT_TRUE(o.out[i].is_hole());
      }
    }
  }
}

TEST(CombineLists, KeysOutsideTheBufferAreHoles) {
  const auto positions = locals({5});
  const auto entries = locals({0, 1});
  const std::vector<std::int32_t> base = {7}, window_base = {0}, start = {4};
  CombineLists c{positions, 3, 1, entries, 2, false, base, window_base, start, 8, 1};
  // Entry 1 would be row 8 of 8; position 3 is not in the buffer.
  const Combined o = combine(c);
  EXPECT_EQ(values(o.out), (std::vector<int>{7, -1, 0, 1, -1}));
  EXPECT_EQ(o.lengths[0], 4);
  c.all_entries = true;
  c.entries = {};
  std::vector<RaggedRow> out(5);
  std::vector<std::int32_t> lengths(1);
  EXPECT_FALSE(combine_index_lists(c, out, lengths).ok());  // 6 entries are visible, 2 fit
}

}  // namespace
}  // namespace lathe
