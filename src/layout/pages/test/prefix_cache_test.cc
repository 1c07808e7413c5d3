#include "layout/pages/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lathe {
namespace {

std::vector<PageId> page_ids(std::initializer_list<int> ids) {
  return std::vector<PageId>(ids.begin(), ids.end());
}
std::vector<std::int32_t> iota(int n, int first = 0) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

struct Fixture {
  PageLedger ledger{PoolShape{4, 16}};
  std::vector<PrefixEvent> events;
  PrefixCache cache = make();

  PrefixCache make() {
    PrefixCacheOptions options;
    options.on_event = [this](const PrefixEvent& e) { events.push_back(e); };
    auto made = PrefixCache::create({{&ledger, 4, 0}}, options);
    LATHE_CHECK(made, "cache of a test");
    return std::move(made).value();
  }
  // Allocates pages for `tokens`, inserts them and releases them.
  std::vector<PageId> store(const std::vector<std::int32_t>& tokens) {
    const auto got = *ledger.allocate(static_cast<std::int64_t>(tokens.size() / 4));
    const GroupPages lists = {got};
    LATHE_CHECK(cache.insert(tokens, lists), "insert of a test");
    LATHE_CHECK(ledger.release(got), "release of a test");
    return got;
  }
};

TEST(PrefixCache, HashIsStable) {
  // XXH3-64 of 8 zero bytes and 1, 2, 3 as int32, little-endian; computed with Python's xxhash.
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  EXPECT_EQ(prefix_hash(kRootHash, tokens), 0x4d64edb81a1f5640ull);
  EXPECT_EQ(prefix_hash(0x0123456789abcdefull, tokens), 0xb8d8329ee539eb0cull);
}

TEST(PrefixCache, LongestFullBlocksAreShared) {
  Fixture f;
  const auto prompt = iota(14);  // three full pages of 4, and 2 tokens
  EXPECT_EQ(f.store(prompt), page_ids({0, 1, 2}));
  EXPECT_EQ(f.cache.block_count(), 3);
  EXPECT_EQ(f.cache.token_count(), 12);
  EXPECT_EQ(f.ledger.used(), 3);

  auto fork = iota(14);
  fork[9] = 99;
  const PrefixMatch m = f.cache.match(fork, 14);
  EXPECT_EQ(m.tokens, 8);
  EXPECT_EQ(m.pages, (GroupPages{page_ids({0, 1})}));
  EXPECT_EQ(f.ledger.owners(PageId(1)), 2);
  EXPECT_EQ(f.ledger.owners(PageId(2)), 1);
  ASSERT_TRUE(f.cache.release(m));
  EXPECT_EQ(f.ledger.owners(PageId(1)), 1);
  EXPECT_EQ(f.cache.release(m).error().message(),
            "match.pages[0][0]: wanted a page with an owner besides the cache, got page 0; a match "
            "is released once");
  EXPECT_EQ(f.ledger.owners(PageId(0)), 1);
}

TEST(PrefixCache, MaxTokensLeavesSomethingToCompute) {
  Fixture f;
  f.store(iota(12));
  const auto tokens = [&](std::int64_t most) {
    const PrefixMatch m = f.cache.match(iota(12), most);
    EXPECT_TRUE(f.cache.release(m));
    EXPECT_EQ(m.pages.at(0).size(), static_cast<std::size_t>(m.tokens / 4));
    return m.tokens;
  };
  EXPECT_EQ(tokens(12), 12);
  EXPECT_EQ(tokens(1000), 12);
  EXPECT_EQ(tokens(11), 8);  // a multiple of the page: its last page is computed again
  EXPECT_EQ(tokens(3), 0);
  EXPECT_EQ(tokens(0), 0);
  EXPECT_EQ(tokens(-5), 0);
  EXPECT_EQ(f.cache.match({}, 5).tokens, 0);
}

TEST(PrefixCache, SecondInsertKeepsThePagesThatAreThere) {
  Fixture f;
  f.store(iota(8));
  const auto own = *f.ledger.allocate(3);  // the same prompt, computed twice at the same time
  const GroupPages lists = {own};
  EXPECT_EQ(*f.cache.insert(iota(12), lists), 12);
  EXPECT_EQ(f.cache.match(iota(12), 12).pages.at(0), (page_ids({0, 1, own[2].value})));
  EXPECT_EQ(f.ledger.owners(own[0]), 1);
  EXPECT_EQ(f.ledger.owners(own[2]), 3);
}

TEST(PrefixCache, RootsNeverShare) {
  Fixture f;
  f.store(iota(8));
  const auto own = *f.ledger.allocate(2);
  EXPECT_EQ(*f.cache.insert(iota(8), GroupPages{own}, 5), 8);
  EXPECT_EQ(f.events.back().prefix_tokens, 8);
  EXPECT_EQ(f.events[2].parent_hash, 5u);
  EXPECT_EQ(f.cache.match(iota(8), 8).pages.at(0), page_ids({0, 1}));
  EXPECT_EQ(f.cache.match(iota(8), 8, 5).pages.at(0), own);
  EXPECT_EQ(f.cache.match(iota(8), 8, 6).tokens, 0);
  EXPECT_EQ(f.cache.stored_pages(iota(8), 8, 5).at(0), own);
  f.cache.clear();
  EXPECT_EQ(f.cache.block_count(), 0);
}

// With equal hashes the root is compared, too.
TEST(PrefixCache, CollidingRootsNeverShare) {
  PageLedger ledger({4, 16});
  PrefixCacheOptions options;
  options.hash = [](std::uint64_t, std::span<const std::int32_t>) { return std::uint64_t{7}; };
  auto cache = PrefixCache::create({{&ledger, 4, 0}}, options);
  ASSERT_TRUE(cache);
  const auto own = *ledger.allocate(1);
  EXPECT_EQ(*cache->insert(iota(4), GroupPages{own}, 1), 4);
  EXPECT_EQ(cache->match(iota(4), 4, 2).tokens, 0);
  EXPECT_EQ(cache->match(iota(4), 4, 1).tokens, 4);
}

TEST(PrefixCache, ForcedCollisionsNeverShare) {
  PageLedger ledger({4, 16});
  PrefixCacheOptions options;
  options.hash = [](std::uint64_t, std::span<const std::int32_t>) { return std::uint64_t{7}; };
  auto cache = PrefixCache::create({{&ledger, 4, 0}}, options);
  ASSERT_TRUE(cache);
  const auto own = *ledger.allocate(4);
  const GroupPages first = {{own[0], own[1]}}, second = {{own[2], own[3]}};
  EXPECT_EQ(*cache->insert(iota(8), first), 4);  // the second block collides with the first
  EXPECT_EQ(cache->match(iota(8), 8).pages.at(0), page_ids({0}));
  EXPECT_EQ(cache->match(iota(8, 100), 8).tokens, 0);
  EXPECT_EQ(*cache->insert(iota(8, 100), second), 0);
  EXPECT_EQ(cache->match(iota(8, 100), 8).tokens, 0);
  // The same tokens after another prefix have other keys and values.
  std::vector<std::int32_t> repeated = iota(4);
  repeated.insert(repeated.end(), {0, 1, 2, 3});
  EXPECT_EQ(cache->match(repeated, 8).pages.at(0), page_ids({0}));
  EXPECT_EQ(cache->block_count(), 1);
  EXPECT_EQ(ledger.owners(own[1]), 1);
}

// Blocks with equal tokens and equal hashes after different prefixes: only the predecessor differs.
TEST(PrefixCache, CollisionsBehindOtherPrefixesNeverShare) {
  PageLedger ledger({4, 16});
  PrefixCacheOptions options;
  options.hash = [](std::uint64_t, std::span<const std::int32_t> tokens) {
    return prefix_hash(kRootHash, tokens);
  };
  auto cache = PrefixCache::create({{&ledger, 4, 0}}, options);
  ASSERT_TRUE(cache);
  const auto own = *ledger.allocate(4);
  const GroupPages first = {{own[0], own[1]}}, second = {{own[2], own[3]}};
  std::vector<std::int32_t> other = iota(8);
  other[0] = 99;
  EXPECT_EQ(*cache->insert(iota(8), first), 8);
  EXPECT_EQ(*cache->insert(other, second), 4);
  EXPECT_EQ(cache->match(other, 8).pages.at(0), page_ids({2}));
  EXPECT_EQ(cache->match(iota(8), 8).pages.at(0), page_ids({0, 1}));
}

TEST(PrefixCache, EvictsLeavesFirstAndTheLeastRecentlyUsed) {
  Fixture f;
  f.store(iota(8));       // pages 0, 1
  f.store(iota(8, 100));  // pages 2, 3
  std::vector<std::int32_t> fork = iota(4);
  fork.insert(fork.end(), {7, 7, 7, 7});
  const auto own = *f.ledger.allocate(2);
  const GroupPages lists = {own};
  ASSERT_TRUE(
      f.cache.insert(fork, lists));  // page 0, then page 5; page 4 stays with its owner only
  ASSERT_TRUE(f.ledger.release(own));
  EXPECT_EQ(f.ledger.used(), 5);

  // Order of last use: 1; 3 and 2; 5 and 0.
  Evicted out = f.cache.evict(0, 2);
  EXPECT_EQ(out.pages.at(0), page_ids({1, 3}));
  EXPECT_EQ(out.blocks, 2);
  out = f.cache.evict(0, 0);
  EXPECT_EQ(out.blocks, 0);

  const PrefixMatch held = f.cache.match(fork, 8);
  EXPECT_EQ(f.cache.evict(0, 100).pages.at(0), page_ids({2}));  // the others are in use
  ASSERT_TRUE(f.cache.release(held));
  ASSERT_TRUE(f.ledger.retain(PageId(5)));
  ASSERT_TRUE(f.ledger.begin_write(PageId(5)));
  ASSERT_TRUE(f.ledger.release(PageId(5)));
  EXPECT_EQ(f.cache.evict(0, 100).blocks, 0);  // still being written
  ASSERT_TRUE(f.ledger.end_write(PageId(5)));
  EXPECT_EQ(f.cache.evict(0, 100).pages.at(0), page_ids({5, 0}));
  EXPECT_EQ(f.ledger.used(), 0);
}

TEST(PrefixCache, AMatchMakesRecent) {
  Fixture f;
  f.store(iota(4));
  f.store(iota(4, 100));
  ASSERT_TRUE(f.cache.release(f.cache.match(iota(4), 4)));
  EXPECT_EQ(f.cache.evict(0, 1).pages.at(0), page_ids({1}));
}

TEST(PrefixCache, EventsInOrder) {
  Fixture f;
  f.store(iota(8));
  f.cache.clear();
  const auto a = prefix_hash(kRootHash, iota(4)), b = prefix_hash(a, iota(4, 4));
  const auto stored = PrefixEventKind::stored, removed = PrefixEventKind::removed;
  EXPECT_EQ(f.events, (std::vector<PrefixEvent>{{stored, a, kRootHash, 4},
                                                {stored, b, a, 8},
                                                {removed, b, a, 8},
                                                {removed, a, kRootHash, 4}}));
  EXPECT_EQ(f.ledger.used(), 0);
}

TEST(PrefixCache, LetsGoOfItsPagesWhenItEnds) {
  PageLedger ledger({4, 4});
  {
    auto cache = PrefixCache::create({{&ledger, 4, 0}});
    ASSERT_TRUE(cache);
    const auto own = *ledger.allocate(2);
    const GroupPages lists = {own};
    ASSERT_TRUE(cache->insert(iota(8), lists));
    PrefixCache moved = std::move(*cache);
    ASSERT_TRUE(ledger.release(own));
    EXPECT_EQ(moved.match(iota(8), 4).tokens, 4);  // the caller never releases it
    auto other = PrefixCache::create({{&ledger, 2, 0}});
    ASSERT_TRUE(other);
    *other = std::move(moved);
    EXPECT_EQ(other->granularity(), 4);
    EXPECT_EQ(other->block_count(), 2);
  }
  EXPECT_EQ(ledger.used(), 1);
  EXPECT_EQ(ledger.owners(PageId(0)), 1);
}

TEST(PrefixCache, BadInsertsChangeNothing) {
  PageLedger full({4, 16}), window({4, 16});
  auto cache = PrefixCache::create({{&full, 4, 0}, {&window, 4, 4}});
  ASSERT_TRUE(cache);
  const auto a = *full.allocate(4), b = *window.allocate(4);
  const auto message = [&](GroupPages lists, int first = 0) {
    const auto r = cache->insert(iota(8, first), lists);
    EXPECT_FALSE(r);
    return r ? std::string() : r.error().message();
  };
  EXPECT_EQ(message({page_ids({0, 1})}), "pages: wanted 2 lists, one per group, got 1");
  EXPECT_EQ(message({page_ids({0, 1}), page_ids({0})}),
            "pages[1]: wanted 2 pages (2 blocks of 4 tokens), got 1");
  EXPECT_EQ(message({page_ids({0, -1}), page_ids({0, 1})}),
            "pages[0][1]: wanted a page with an owner, got page -1");
  EXPECT_EQ(message({page_ids({0, 16}), page_ids({0, 1})}),
            "pages[0][1]: wanted a page with an owner, got page 16");
  EXPECT_EQ(message({page_ids({0, 1}), page_ids({0, 9})}),
            "pages[1][1]: wanted a page with an owner, got page 9");
  EXPECT_EQ(message({page_ids({0, 0}), page_ids({0, 1})}),
            "pages[0][1]: wanted every page once, got page 0");
  ASSERT_TRUE(full.begin_write(PageId(1)));
  EXPECT_EQ(
      message({page_ids({0, 1}), page_ids({0, 1})}),
      "pages[0][1]: wanted a page that is not being written, got page 1; insert after end_write()");
  ASSERT_TRUE(full.end_write(PageId(1)));
  EXPECT_EQ(cache->block_count(), 0);
  for (int p = 0; p < 4; ++p) EXPECT_EQ(full.owners(PageId(p)) + window.owners(PageId(p)), 2);

  const GroupPages good = {page_ids({0, 1}), page_ids({-1, 1})};
  ASSERT_TRUE(cache->insert(iota(8), good));
  EXPECT_EQ(message({page_ids({2, 1}), page_ids({2, 3})}, 50),
            "pages[0][1]: wanted a page that is not cached for other tokens, got page 1");
}

TEST(PrefixCache, BadGroups) {
  PageLedger a({4, 4}), b({4, 4}), c({4, 4}), d({4, 4});
  EXPECT_FALSE(PrefixCache::create({}));
  EXPECT_FALSE(PrefixCache::create({{nullptr, 4, 0}}));
  EXPECT_EQ(PrefixCache::create({{&a, 4, 0}, {&a, 8, 0}}).error().field, "groups[1].ledger");
  EXPECT_EQ(PrefixCache::create({{&a, 0, 0}}).error().field, "groups[0].tokens_per_page");
  EXPECT_EQ(PrefixCache::create({{&a, 4, -1}}).error().field, "groups[0].window_tokens");
  EXPECT_FALSE(PrefixCache::create({{&a, 65521, 0}, {&b, 65519, 0}}));
  EXPECT_EQ(
      PrefixCache::create({{&a, 64, 0}, {&b, 256, 128}, {&c, 256, 0}, {&d, 2, 2}})->granularity(),
      256);
  EXPECT_EQ(PrefixCache::create({{&a, 48, 0}, {&b, 64, 0}})->granularity(), 192);
  EXPECT_EQ(PrefixCache::create({{&a, 8, 0}, {&b, 4, 0}}, {.beginnings = true}).error().message(),
            "options.beginnings: wanted false for pages of different sizes, got groups[1] has 4 "
            "tokens per page of 8");
}

// Groups with 2 and 4 tokens per page: blocks end only at multiples of 4.
TEST(PrefixCache, GroupsOfDifferentPageSizes) {
  PageLedger fine({2, 32}), coarse({4, 32});
  auto cache = PrefixCache::create({{&fine, 2, 0}, {&coarse, 4, 0}});
  ASSERT_TRUE(cache);
  const GroupPages lists = {*fine.allocate(5), *coarse.allocate(2)};
  EXPECT_EQ(*cache->insert(iota(10), lists), 8);  // five fine pages are full, but the fifth has no
  EXPECT_EQ(fine.owners(PageId(4)), 1);           // coarse page with it
  auto fork = iota(8);
  fork[6] = 99;  // three fine pages are equal, one coarse page is
  const PrefixMatch m = cache->match(fork, 8);
  EXPECT_EQ(m.tokens, 4);
  EXPECT_EQ(m.pages, (GroupPages{page_ids({0, 1}), page_ids({0})}));
  ASSERT_TRUE(cache->release(m));
  ASSERT_TRUE(fine.release(lists[0]));
  ASSERT_TRUE(coarse.release(lists[1]));
  const Evicted out = cache->evict(1, 1);  // one coarse page, and the fine pages of its block
  EXPECT_EQ(out.pages, (GroupPages{page_ids({2, 3}), page_ids({1})}));
}

// Blocks of 4 tokens, window pages of 2, a window of 3: a prefix needs its last two pages.
TEST(PrefixCache, AWindowNeedsOnlyItsLastPages) {
  PageLedger full({4, 32}), window({2, 32});
  auto cache = PrefixCache::create({{&full, 4, 0}, {&window, 2, 3}});
  ASSERT_TRUE(cache);
  const auto a = *full.allocate(3), b = *window.allocate(6);
  // The request has released its pages before token 8, except one.
  const GroupPages lists = {a, {PageId(), b[1], PageId(), PageId(), b[4], b[5]}};
  EXPECT_EQ(*cache->insert(iota(12), lists), 12);
  EXPECT_EQ(cache->page_count(1), 3);
  PrefixMatch m = cache->match(iota(12), 12);
  EXPECT_EQ(m.tokens, 12);
  EXPECT_EQ(m.pages, (GroupPages{page_ids({0, 1, 2}), page_ids({-1, -1, -1, -1, 4, 5})}));
  EXPECT_EQ(window.owners(b[1]), 2);  // not in the match; owners are the request and the cache
  ASSERT_TRUE(cache->release(m));
  // Boundary 8 has no window page, boundary 4 only one of its two.
  EXPECT_EQ(cache->match(iota(12), 11).tokens, 0);

  // Another request that has these pages adds them; pages that are cached stay.
  const auto a2 = *full.allocate(2), b2 = *window.allocate(4);
  const GroupPages again = {a2, b2};
  EXPECT_EQ(*cache->insert(iota(8), again), 8);
  m = cache->match(iota(12), 11);
  EXPECT_EQ(m.tokens, 8);
  EXPECT_EQ(m.pages, (GroupPages{page_ids({0, 1}), {PageId(), PageId(), b2[2], b2[3]}}));
  ASSERT_TRUE(cache->release(m));
  m = cache->match(iota(12), 4);
  EXPECT_EQ(m.pages, (GroupPages{page_ids({0}), {b2[0], b[1]}}));
  ASSERT_TRUE(cache->release(m));
  EXPECT_EQ(cache->page_count(1), 6);
}

TEST(PrefixCache, WindowPagesAreEvictedOnTheirOwn) {
  PageLedger full({4, 32}), window({4, 32});
  std::vector<PrefixEvent> events;
  PrefixCacheOptions options;
  options.on_event = [&](const PrefixEvent& e) { events.push_back(e); };
  auto cache = PrefixCache::create({{&full, 4, 0}, {&window, 4, 4}}, options);
  ASSERT_TRUE(cache);
  const GroupPages lists = {*full.allocate(4), *window.allocate(4)};
  ASSERT_TRUE(cache->insert(iota(16), lists));
  ASSERT_TRUE(cache->release(cache->match(iota(16), 4)));  // boundary 4 is the most recently used
  ASSERT_TRUE(full.release(lists[0]));
  ASSERT_TRUE(window.release(lists[1]));
  events.clear();

  // Blocks 2 and 1 were never part of a used window, so they lose their window pages first, the
  // deeper one before the other. They stay in the cache, because they have successors.
  EXPECT_EQ(cache->evict(1, 2).pages, (GroupPages{{}, page_ids({2, 1})}));
  EXPECT_TRUE(events.empty());
  PrefixMatch m = cache->match(iota(16), 15);
  EXPECT_EQ(m.tokens, 4);
  ASSERT_TRUE(cache->release(m));
  m = cache->match(iota(16), 16);
  EXPECT_EQ(m.tokens, 16);
  // The match uses window page 3; page 0 is not part of it and is evicted.
  EXPECT_EQ(cache->evict(1, 9).pages, (GroupPages{{}, page_ids({0})}));
  // The request releases its old window page: the page is evicted, the block stays, as it is in
  // use.
  ASSERT_TRUE(window.release(PageId(3)));
  EXPECT_EQ(cache->evict(1, 9).pages, (GroupPages{{}, page_ids({3})}));
  EXPECT_EQ(cache->block_count(), 4);
  EXPECT_EQ(window.used(), 0);
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(cache->match(iota(16), 16).tokens, 0);
  ASSERT_TRUE(full.release(m.pages[0]));
  EXPECT_EQ(cache->evict(0, 9).pages, (GroupPages{page_ids({3, 2, 1, 0}), {}}));
  EXPECT_EQ(full.used(), 0);
  EXPECT_EQ(events.size(), 4u);
}

}  // namespace
}  // namespace lathe
