#include "layout/pages/pool_group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/test_scale.h"
#include "layout/pages/copy_order.h"

namespace lathe {
namespace {

std::vector<Slot> slots(std::initializer_list<int> ids) {
  return std::vector<Slot>(ids.begin(), ids.end());
}

// Test value of byte `b` of a part of the token in `slot`. It depends on pool, layer, slot, part
// and byte, so a record that is not copied or goes to the wrong place is found.
std::byte tag(int pool, int layer, int slot, int part, int b, int salt = 0) {
  unsigned x = static_cast<unsigned>(((((pool * 7 + layer) * 1009 + slot) * 5 + part) * 997 + b));
  x = (x + static_cast<unsigned>(salt)) * 2654435761u;
  return static_cast<std::byte>(x >> 24);
}

void write_token(PoolGroup& group, int slot, int as_slot, int salt = 0) {
  for (int p = 0; p < group.pool_count(); ++p) {
    const CacheLayout& layout = group.pool(p).layout();
    for (int layer = 0; layer < group.pool(p).layers(); ++layer) {
      const PoolView view = group.pool(p).view(layer);
      for (int i = 0; i < layout.part_count(); ++i) {
        std::byte* at = view.at(layout.part(i), Slot(slot));
        for (int b = 0; b < layout.part(i).bytes(); ++b) at[b] = tag(p, layer, as_slot, i, b, salt);
      }
    }
  }
}

// Whether `slot` has token `as_slot`'s bytes in every part of every layer of every pool.
testing::AssertionResult holds(PoolGroup& group, int slot, int as_slot) {
  for (int p = 0; p < group.pool_count(); ++p) {
    const CacheLayout& layout = group.pool(p).layout();
    for (int layer = 0; layer < group.pool(p).layers(); ++layer) {
      const PoolView view = group.pool(p).view(layer);
      for (int i = 0; i < layout.part_count(); ++i) {
        const std::byte* at = view.at(layout.part(i), Slot(slot));
        for (int b = 0; b < layout.part(i).bytes(); ++b) {
          if (at[b] != tag(p, layer, as_slot, i, b)) {
            return testing::AssertionFailure()
                   << "slot " << slot << " is not token " << as_slot << ": pool " << p << " layer "
                   << layer << " part " << name(layout.part(i).role) << " byte " << b;
          }
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

PoolGroup latent_and_index(std::int32_t page_size, std::int64_t pages) {
  const std::vector<PoolPart> parts = {
      {CacheLayout(LayoutKind::v4_fp8), page_size, 2},
      {CacheLayout(LayoutKind::index_fp8), page_size, 3},
      {CacheLayout(LayoutKind::mla_fp8_block), page_size, 1},
  };
  auto group = PoolGroup::create(parts, {.pages = pages});
  LATHE_CHECK(group, "group of a test");
  return std::move(group).value();
}

TEST(PoolGroup, OneBudgetAndOneLedger) {
  // Bytes of a page: 2 layers x 36864 + 2 layers x 8448 = 90624.
  const std::vector<PoolPart> parts = {{CacheLayout(LayoutKind::mla_fp8), 64, 2},
                                       {CacheLayout(LayoutKind::index_fp8), 64, 2}};
  auto group = PoolGroup::create(parts, {.budget_bytes = 3 * 90624 + 90623});
  ASSERT_TRUE(group) << group.error().message();
  EXPECT_EQ(group->pages(), 3);
  EXPECT_EQ(group->bytes(), 3 * 90624);
  ASSERT_TRUE(group->pool(1).ledger().allocate(2));
  EXPECT_EQ(group->ledger().used(), 2);
  EXPECT_EQ(group->pool(0).used_bytes(), 2 * 2 * 36864);
  EXPECT_EQ(group->used_bytes(), 2 * 90624);
  EXPECT_FALSE(PoolGroup::create({}, {.pages = 1}));
  EXPECT_NE(PoolGroup::create(parts, {.budget_bytes = 90623}).error().message().find("90624"),
            std::string::npos);
}

// An index page has keys and scales in two planes, so a token's bytes are not at slot * 132. A copy
// that computes them so would copy other tokens. The offsets here are computed by hand.
TEST(PoolGroup, IndexRowsMoveWithTheirTokens) {
  PoolGroup group = latent_and_index(64, 4);
  for (int s = 0; s < 256; ++s) write_token(group, s, s);
  ASSERT_TRUE(group.copy_tokens(slots({5, 70}), slots({130, 255})));
  const std::byte* index = group.pool(1).view(2).data;
  for (int b = 0; b < 128; ++b) {
    EXPECT_EQ(index[2 * 8448 + 2 * 128 + b], tag(1, 2, 5, 0, b));    // slot 130: page 2, token 2
    EXPECT_EQ(index[3 * 8448 + 63 * 128 + b], tag(1, 2, 70, 0, b));  // slot 255: page 3, token 63
  }
  for (int b = 0; b < 4; ++b) {
    EXPECT_EQ(index[2 * 8448 + 8192 + 2 * 4 + b], tag(1, 2, 5, 1, b));
    EXPECT_EQ(index[3 * 8448 + 8192 + 63 * 4 + b], tag(1, 2, 70, 1, b));
  }
  for (int s = 0; s < 256; ++s) {
    EXPECT_TRUE(holds(group, s, s == 130 ? 5 : s == 255 ? 70 : s));
  }
}

TEST(PoolGroup, OverlapsBehaveAsIfAllSourcesWereReadFirst) {
  const struct {
    std::initializer_list<int> src, dst;
  } cases[] = {
      {{0, 1, 2, 3, 4}, {1, 2, 3, 4, 5}},  // shift up
      {{1, 2, 3, 4, 5}, {0, 1, 2, 3, 4}},  // shift down
      {{0, 1}, {1, 0}},                    // swap
      {{0, 1, 2, 7, 8}, {1, 2, 0, 8, 7}},  // two cycles
      {{0, 0, 0, 1}, {1, 2, 3, 0}},        // a cycle with a source that is copied three times
      {{3, 3, 4}, {3, 4, 3 + 2}},          // onto itself
      {{9, 8, 7, 6}, {6, 7, 8, 9}},        // reversal
      {{}, {}},
  };
  for (const auto& c : cases) {
    PoolGroup group = latent_and_index(4, 3);
    std::map<int, int> want;
    for (int s = 0; s < 12; ++s) write_token(group, s, want[s] = s);
    const auto before = want;
    const auto src = slots(c.src), dst = slots(c.dst);
    for (std::size_t i = 0; i < src.size(); ++i) want[dst[i].value] = before.at(src[i].value);
    ASSERT_TRUE(group.copy_tokens(src, dst));
    for (const auto& [s, as] : want) ASSERT_TRUE(holds(group, s, as));
  }
}

TEST(PoolGroup, RandomCopiesAgainstASnapshot) {
  std::mt19937 rng(test_seed(3));
  for (int round = 0; round < 30 * test_scale(); ++round) {
    const int page = 1 + static_cast<int>(rng() % 9);
    const int n = page * 5;
    PoolGroup group = latent_and_index(page, 5);
    std::vector<int> now(static_cast<std::size_t>(n));
    for (int s = 0; s < n; ++s) write_token(group, s, now[static_cast<std::size_t>(s)] = s);
    for (int step = 0; step < 3; ++step) {
      std::vector<Slot> src, dst;
      for (int s = 0; s < n; ++s) {
        if (rng() % 4 == 0) continue;
        dst.emplace_back(s);
        src.emplace_back(static_cast<int>(rng() % static_cast<unsigned>(n)));
      }
      std::shuffle(dst.begin(), dst.end(), rng);
      const auto before = now;
      for (std::size_t i = 0; i < src.size(); ++i) {
        now[static_cast<std::size_t>(dst[i].value)] =
            before[static_cast<std::size_t>(src[i].value)];
      }
      ASSERT_TRUE(group.copy_tokens(src, dst));
    }
    for (int s = 0; s < n; ++s) ASSERT_TRUE(holds(group, s, now[static_cast<std::size_t>(s)]));
  }
}

TEST(PoolGroup, BadCopiesWriteNothing) {
  PoolGroup group = latent_and_index(4, 3);
  for (int s = 0; s < 12; ++s) write_token(group, s, s);
  EXPECT_EQ(group.copy_tokens(slots({0, 12}), slots({1, 2})).error().message(),
            "src[1]: wanted a slot from 0 to 11, got 12");
  EXPECT_EQ(group.copy_tokens(slots({0, 1}), slots({1, -1})).error().message(),
            "dst[1]: wanted a slot from 0 to 11, got -1");
  EXPECT_EQ(group.copy_tokens(slots({0, 1}), slots({5, 5})).error().message(),
            "dst[1]: wanted every destination once, got slot 5 again");
  EXPECT_EQ(group.copy_tokens(slots({0, 1}), slots({5})).error().message(),
            "dst: wanted 2 slots, as src, got 1");
  const std::vector<PageId> p0 = {PageId(0)}, p3 = {PageId(3)};
  EXPECT_EQ(group.copy_pages(p0, p3).error().message(), "dst[0]: wanted a page from 0 to 2, got 3");
  for (int s = 0; s < 12; ++s) EXPECT_TRUE(holds(group, s, s));
}

TEST(PoolGroup, CopyPagesTakesTheWholePage) {
  PoolGroup group = latent_and_index(4, 4);
  for (int p = 0; p < 3; ++p) {  // also the page padding
    for (int l = 0; l < group.pool(p).layers(); ++l) {
      const PoolView v = group.pool(p).view(l);
      for (std::int64_t b = 0; b < v.bytes(); ++b) {
        v.data[b] = static_cast<std::byte>(b / v.page_stride * 50 + b % 49);
      }
    }
  }
  const std::vector<PageId> src = {PageId(0), PageId(1), PageId(2), PageId(1)};
  const std::vector<PageId> dst = {PageId(1), PageId(2), PageId(0), PageId(3)};
  ASSERT_TRUE(group.copy_pages(src, dst));
  const int want[] = {2, 0, 1, 1};
  for (int p = 0; p < 3; ++p) {
    for (int l = 0; l < group.pool(p).layers(); ++l) {
      const PoolView v = group.pool(p).view(l);
      for (std::int64_t b = 0; b < v.bytes(); ++b) {
        const std::int64_t from = want[b / v.page_stride] * v.page_stride + b % v.page_stride;
        ASSERT_EQ(v.data[b], static_cast<std::byte>(from / v.page_stride * 50 + from % 49));
      }
    }
  }
}

TEST(PoolGroup, PagesOfDifferentEntryCounts) {
  // One page number for 256 tokens: 64 entries of 4 tokens, and 2 entries of 128.
  const std::vector<PoolPart> parts = {{CacheLayout(LayoutKind::v4_fp8), 64, 1},
                                       {CacheLayout(LayoutKind::v4_fp8), 2, 1}};
  auto group = PoolGroup::create(parts, {.pages = 2});
  ASSERT_TRUE(group);
  EXPECT_EQ(group->bytes_per_page(), 37440 + 1728);
  std::memset(group->pool(1).view().data, 3, 1728);
  const std::vector<PageId> p0 = {PageId(0)}, p1 = {PageId(1)};
  ASSERT_TRUE(group->copy_pages(p0, p1));
  EXPECT_EQ(group->pool(1).view().data[2 * 1728 - 1], std::byte{3});
  EXPECT_EQ(group->copy_tokens(slots({0}), slots({1})).error().message(),
            "copy_tokens: wanted pools of one page size, got 64 and 2; use copy_pages()");
}

TEST(CopyOrder, IsMinimal) {
  const auto order = [](std::vector<std::int32_t> src, std::vector<std::int32_t> dst) {
    return copy_order(src, dst);
  };
  EXPECT_TRUE(order({4}, {4}).empty());
  EXPECT_EQ(order({0, 1}, {1, 2}), (std::vector<CopyStep>{{1, 2}, {0, 1}}));
  EXPECT_EQ(order({0, 1}, {1, 0}),
            (std::vector<CopyStep>{{1, kCopyScratch}, {0, 1}, {kCopyScratch, 0}}));
  std::vector<std::int32_t> src, dst;  // a long shift needs neither scratch nor recursion
  for (int i = 0; i < 100000; ++i) {
    src.push_back(i);
    dst.push_back(i + 1);
  }
  const auto steps = copy_order(src, dst);
  EXPECT_EQ(steps.size(), 100000u);
  EXPECT_EQ(steps.front(), (CopyStep{99999, 100000}));
}

}  // namespace
}  // namespace lathe
