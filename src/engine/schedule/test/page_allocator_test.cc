#include "engine/schedule/page_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/test_scale.h"
#include "plan/model_plan.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Pages = RequestPages;
using Tokens = std::vector<std::int32_t>;

PageAllocator make(PageLedger& ledger, bool prefix_cache = true, bool copies = false) {
  const PageKind kind{&ledger, {.page_size = ledger.shape().page_size}};
  auto made = PageAllocator::create(std::span(&kind, 1), kind.rule.page_size, prefix_cache, copies);
  EXPECT_TRUE(made);
  return std::move(*made);
}

std::vector<PageId> list(const Pages& pages) {
  return pages.lists.empty() ? std::vector<PageId>() : pages.lists[0];
}

// Allocates n more pages of the only kind.
void take(PageAllocator& allocator, std::int64_t n, Pages& pages) {
  const std::int64_t tokens = std::ssize(list(pages)) * allocator.rules()[0].page_size;
  allocator.extend(tokens, tokens + n * allocator.rules()[0].page_size, pages);
}

TEST(PageAllocator, CachedPagesAreAvailableUntilSomebodyHoldsThem) {
  PageLedger ledger({2, 4});
  PageAllocator pages = make(ledger);
  const Tokens tokens{1, 2, 3, 4, 5};
  Pages a;
  take(pages, 3, a);
  EXPECT_EQ(pages.available(0), 1);
  pages.publish(tokens, a);
  EXPECT_EQ(pages.cached_tokens(), 4);
  pages.release(a);
  EXPECT_THAT(list(a), IsEmpty());
  EXPECT_EQ(pages.available(0), 4);
  EXPECT_EQ(ledger.free(), 2);

  Pages b;
  EXPECT_EQ(pages.match(tokens, 4, b).tokens, 4);
  EXPECT_THAT(list(b), ElementsAre(PageId(0), PageId(1)));
  EXPECT_EQ(pages.available(0), 2);
  Pages c;
  EXPECT_EQ(pages.match(tokens, 3, c).tokens, 2);
  EXPECT_EQ(pages.available(0), 2);  // two requests hold page 0
  pages.release(b);
  EXPECT_EQ(pages.available(0), 3);
  // This evicts page 1 and keeps page 0.
  take(pages, 3, b);
  EXPECT_EQ(pages.available(0), 0);
  EXPECT_EQ(pages.cached_tokens(), 2);
  pages.release(b);
  pages.release(c);
  pages.clear_cache();
  EXPECT_EQ(ledger.free(), 4);
}

TEST(PageAllocator, PublishingGoesOverToEqualPages) {
  PageLedger ledger({2, 8});
  PageAllocator pages = make(ledger);
  const Tokens tokens{1, 2, 3, 4};
  Pages a;
  Pages b;
  take(pages, 2, a);
  take(pages, 3, b);
  pages.publish(tokens, a);
  EXPECT_EQ(pages.available(0), 3);
  pages.publish(tokens, b);  // b's last page is not full and stays private
  EXPECT_THAT(list(b), ElementsAre(PageId(0), PageId(1), PageId(4)));
  EXPECT_EQ(pages.available(0), 5);
  pages.release(a);
  EXPECT_EQ(pages.available(0), 5);
  pages.release(b);
  EXPECT_EQ(pages.available(0), 8);
}

TEST(PageAllocator, ClearingKeepsWhatRequestsHold) {
  PageLedger ledger({1, 8});
  PageAllocator pages = make(ledger);
  Pages a;
  take(pages, 3, a);
  pages.publish(Tokens{1, 2, 3}, a);
  Pages b;
  EXPECT_EQ(pages.match(Tokens{1, 2, 9}, 2, b).tokens, 2);
  pages.release(a);
  pages.clear_cache();
  EXPECT_EQ(pages.cached_tokens(), 2);
  pages.release(b);
  pages.clear_cache();
  EXPECT_EQ(pages.cached_tokens(), 0);
  EXPECT_EQ(ledger.free(), 8);
}

// A prompt that leaves a cached one inside a page gets a page of its own to copy the tokens to, and
// holds the cached page until its step is over.
TEST(PageAllocator, TokensInsideACachedPageAreCopied) {
  PageLedger ledger({4, 5});
  PageAllocator pages = make(ledger, true, true);
  Pages a;
  take(pages, 2, a);
  pages.publish(Tokens{1, 2, 3, 4, 5, 6, 7, 8}, a);
  pages.release(a);

  Pages b;
  const Tokens tokens{1, 2, 3, 4, 5, 6, 9, 9};
  const CachedTokens cached = pages.match(tokens, 7, b);
  EXPECT_EQ(cached.tokens, 6);
  EXPECT_EQ(cached.known, 6);
  EXPECT_EQ(b.copied, 2);
  EXPECT_THAT(b.copied_from, ElementsAre(PageId(1)));
  EXPECT_THAT(list(b), ElementsAre(PageId(0), PageId(2)));
  EXPECT_EQ(pages.available(0), 2);
  pages.extend(6, 9, b);
  EXPECT_THAT(list(b), ElementsAre(PageId(0), PageId(2), PageId(3)));
  pages.confirm(b);
  EXPECT_EQ(b.copied, 0);
  EXPECT_EQ(pages.available(0), 2);  // page 1 can be evicted, page 4 is free
  pages.release(b);

  // A step that failed, and a request that has no room for the page to copy from.
  EXPECT_EQ(pages.match(tokens, 7, b).tokens, 6);
  pages.extend(6, 9, b);
  pages.undo(6, b);
  EXPECT_EQ(pages.drop_copies(b), 2);
  EXPECT_EQ(pages.drop_copies(b), 0);
  EXPECT_THAT(list(b), ElementsAre(PageId(0)));
  EXPECT_EQ(pages.available(0), 4);
  Pages c;
  take(pages, 3, c);
  EXPECT_EQ(pages.match(tokens, 7, a).tokens, 4);  // page 1 would be held, and none would be left
  EXPECT_EQ(a.copied, 0);
  for (Pages* held : {&a, &b, &c}) pages.release(*held);
  EXPECT_EQ(pages.available(0), 5);
  pages.clear_cache();
  EXPECT_EQ(ledger.free(), 5);
}

// A state has no value inside a page, and pages of different sizes end at different tokens.
TEST(PageAllocator, StatesAndUnequalPagesAreNotCopied) {
  for (const PageRule second :
       {PageRule{.page_size = 2},
        PageRule{.page_size = 4, .resume_tokens = 4, .most = 4, .per_step = 2, .rewrites = true}}) {
    PageLedger ledger({4, 8}), other({static_cast<std::int32_t>(second.page_size), 16});
    const std::array kinds{PageKind{&ledger, {.page_size = 4}}, PageKind{&other, second}};
    auto made = PageAllocator::create(kinds, 4, true, true);
    ASSERT_TRUE(made);
    Pages a, b;
    for (const std::int64_t from : {0, 4}) {
      made->extend(from, from + 4, a);
      made->confirm(a);
    }
    made->publish(Tokens{1, 2, 3, 4, 5, 6, 7, 8}, a);
    EXPECT_EQ(made->match(Tokens{1, 2, 3, 4, 5, 6, 9, 9}, 7, b).tokens, 4);
    EXPECT_EQ(b.copied, 0);
    made->release(a);
    made->release(b);
  }
}

TEST(PageAllocator, WithoutACacheNothingIsFound) {
  PageLedger ledger({2, 4});
  PageAllocator pages = make(ledger, false);
  Pages a;
  take(pages, 2, a);
  pages.publish(Tokens{1, 2, 3, 4}, a);
  EXPECT_THAT(list(a), ElementsAre(PageId(0), PageId(1)));
  pages.release(a);
  EXPECT_EQ(ledger.free(), 4);
  EXPECT_EQ(pages.match(Tokens{1, 2, 3, 4}, 4, a).tokens, 0);
  EXPECT_THAT(list(a), IsEmpty());
}

TEST(PageAllocator, TakesOnlyWhatIsFreeAtTheStart) {
  PageLedger ledger({2, 4});
  ASSERT_TRUE(ledger.allocate(1));
  PageAllocator pages = make(ledger);
  EXPECT_EQ(pages.total(0), 3);
  Pages a;
  take(pages, 3, a);
  EXPECT_EQ(pages.available(0), 0);
}

// All available pages can be allocated, whatever is shared, and a match gives pages with the right
// tokens.
TEST(PageAllocator, WhatIsAvailableCanBeHad) {
  std::mt19937 rng(test_seed(6));
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
  for (int round = 0; round < 200 * test_scale(); ++round) {
    const auto page_size = static_cast<std::int32_t>(1 + pick(3));
    PageLedger ledger({page_size, static_cast<std::int64_t>(3 + pick(20))});
    PageAllocator pages = make(ledger, true, pick(2) == 0);
    struct User {
      Tokens tokens;
      Pages pages;
    };
    std::vector<User> users;
    std::vector<Tokens> written(static_cast<std::size_t>(ledger.total()));
    const auto write = [&](User& u, std::size_t from) {
      for (std::size_t i = from; i < list(u.pages).size(); ++i) {
        written[static_cast<std::size_t>(u.pages.lists[0][i].value)] = Tokens(
            u.tokens.begin(), u.tokens.begin() + static_cast<std::ptrdiff_t>(i + 1) * page_size);
      }
    };
    for (int action = 0; action < 100; ++action) {
      if (users.empty() || pick(3) == 0) {
        User u;
        const std::size_t count = 1 + pick(6);
        for (std::size_t i = 0; i < count * static_cast<std::size_t>(page_size); ++i) {
          u.tokens.push_back(static_cast<std::int32_t>(pick(2)));
        }
        pages.match(u.tokens, std::ssize(u.tokens), u.pages);
        if (u.pages.copied > 0) {
          const Tokens& from = written[static_cast<std::size_t>(u.pages.copied_from[0].value)];
          const std::int64_t same = (std::ssize(list(u.pages)) - 1) * page_size + u.pages.copied;
          ASSERT_TRUE(std::equal(u.tokens.begin(), u.tokens.begin() + same, from.begin()));
          if (pick(3) == 0) pages.drop_copies(u.pages);
        }
        const std::size_t found = list(u.pages).size() - (u.pages.copied > 0 ? 1 : 0);
        for (std::size_t i = 0; i < found; ++i) {
          ASSERT_EQ(written[static_cast<std::size_t>(u.pages.lists[0][i].value)],
                    Tokens(u.tokens.begin(),
                           u.tokens.begin() + static_cast<std::ptrdiff_t>(i + 1) * page_size));
        }
        const auto more = static_cast<std::int64_t>(count) - std::ssize(list(u.pages));
        if (more > pages.available(0)) {
          pages.release(u.pages);
          continue;
        }
        take(pages, more, u.pages);
        write(u, found);
        pages.confirm(u.pages);
        users.push_back(std::move(u));
      } else if (pick(2) == 0) {
        User& u = users[pick(users.size())];
        pages.publish(u.tokens, u.pages);
      } else if (pick(8) == 0) {
        pages.clear_cache();
      } else {
        const std::size_t i = pick(users.size());
        pages.release(users[i].pages);
        users.erase(users.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    Pages rest;
    take(pages, pages.available(0), rest);  // aborts if they are not available
    EXPECT_EQ(ledger.free(), 0);
    pages.release(rest);
    for (User& u : users) pages.release(u.pages);
    pages.clear_cache();
    EXPECT_EQ(ledger.free(), ledger.total());
  }
}

// Keys of all tokens, keys of a window of 5 and a state, in blocks of 4 tokens.
struct ThreeKinds {
  PageLedger full{PoolShape{4, 16}};
  PageLedger window{PoolShape{2, 16}};
  PageLedger state{PoolShape{4, 16}};
  PageAllocator pages = *PageAllocator::create(
      std::array{
          PageKind{&full, {.page_size = 4}},
          PageKind{&window, {.page_size = 2, .resume_tokens = 4, .most = 16}},
          PageKind{
              &state,
              {.page_size = 4, .resume_tokens = 4, .most = 4, .per_step = 2, .rewrites = true}}},
      4, true);
};

std::vector<int> ids(const std::vector<PageId>& list) {
  std::vector<int> out;
  for (const PageId page : list) out.push_back(page.value);
  return out;
}

// A step that starts before the one in flight ends: each of the two reads one page and writes
// another.
TEST(PageAllocator, AStepBehindAnotherReplacesPagesOfItsOwn) {
  ThreeKinds k;
  Pages a;
  k.pages.extend(0, 9, a);
  k.pages.confirm(a);
  const auto start = [&](std::int64_t from) {
    k.pages.extend(from, from + 1, a);
    k.pages.extend_ahead(from + 1, from + 2, a);
  };
  // Both steps write within one page's tokens.
  start(9);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 3));
  EXPECT_EQ(k.pages.last_before(2, 9, a), PageId(1));
  EXPECT_EQ(k.pages.last_before_ahead(2, 10, a), PageId(2));
  // The boundary's state, the one that the first step reads and needs again if it is repeated, and
  // one that each step writes: no plan can have fewer.
  EXPECT_EQ(16 - k.state.free(), kStateSlotsPerRequest);
  k.pages.undo(9, a);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 1));
  EXPECT_EQ(k.pages.held(), 3 + 5 + 2);
  // The first one is confirmed, the second is not.
  start(9);
  k.pages.confirm(a);
  EXPECT_EQ(k.pages.held(), 3 + 6 + 3);
  k.pages.undo(10, a);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 2));
  EXPECT_EQ(k.pages.held(), 3 + 5 + 2);
  // The second step begins a page.
  k.pages.extend(10, 11, a);
  k.pages.confirm(a);
  start(11);
  ASSERT_EQ(a.lists[2].size(), 4u);
  EXPECT_EQ(k.pages.last_before_ahead(2, 12, a), a.lists[2][2]);
  EXPECT_NE(k.pages.last_before(2, 11, a), a.lists[2][2]);
  k.pages.undo(11, a);
  EXPECT_EQ(a.lists[2].size(), 3u);
  EXPECT_EQ(k.pages.held(), 3 + 6 + 2);
  start(11);
  k.pages.release(a);
  EXPECT_EQ(k.pages.held(), 0);
  EXPECT_EQ(k.state.free(), 16);
}

TEST(PageAllocator, AWindowGivesBackWhatItHasLeftBehind) {
  ThreeKinds k;
  Pages a;
  k.pages.extend(0, 10, a);
  EXPECT_THAT(ids(a.lists[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(ids(a.lists[1]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 1));  // the last boundary's, and the last token's
  EXPECT_EQ(k.pages.held(), 3 + 5 + 2);
  k.pages.confirm(a);
  k.pages.trim(0, 10, a);
  // The boundary is at 8: tokens from 4 on stay.
  EXPECT_THAT(ids(a.lists[1]), ElementsAre(-1, -1, 2, 3, 4));
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 1));
  EXPECT_EQ(k.window.free(), 13);

  // The state after token 10 stays intact while the step writes the one after token 11.
  k.pages.extend(10, 11, a);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 2));
  EXPECT_EQ(k.pages.last_before(2, 10, a), PageId(1));
  k.pages.undo(10, a);
  EXPECT_THAT(ids(a.lists[1]), ElementsAre(-1, -1, 2, 3, 4));
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 1));
  EXPECT_EQ(k.pages.last_before(2, 10, a), PageId(1));

  // Two drafts that pass the block's end; the first is accepted.
  k.pages.extend(10, 11, a);
  k.pages.extend_further(13, a);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 2, 3));
  EXPECT_EQ(k.pages.last_before(2, 10, a), PageId(1));
  k.pages.undo(10, a);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, 0, 1));
  k.pages.extend(10, 13, a);
  k.pages.confirm(a);
  k.pages.trim(10, 13, a);
  EXPECT_THAT(ids(a.lists[2]), ElementsAre(-1, -1, 2, 3));
  EXPECT_EQ(k.pages.last_before(2, 12, a), PageId(2));
  k.pages.release(a);
  EXPECT_EQ(k.pages.held(), 0);
  EXPECT_EQ(k.state.free(), 16);
}

TEST(PageAllocator, AMatchResumesWhereWindowAndStateAre) {
  ThreeKinds k;
  Tokens tokens(14);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  Pages a;
  k.pages.extend(0, 6, a);
  k.pages.confirm(a);
  k.pages.trim(0, 6, a);
  k.pages.extend(6, 14, a);
  k.pages.confirm(a);
  k.pages.trim(6, 14, a);
  k.pages.publish(tokens, a);
  k.pages.release(a);
  Pages b;
  // Twelve tokens are whole blocks; the slots of the boundaries at 4 and 8 are gone.
  EXPECT_EQ(k.pages.match(tokens, 14, b).tokens, 12);
  EXPECT_THAT(ids(b.lists[1]), ElementsAre(-1, -1, -1, -1, 4, 5));
  EXPECT_EQ(b.lists[2].size(), 3u);
  EXPECT_TRUE(b.lists[2][1].is_hole());
  EXPECT_FALSE(b.lists[2][2].is_hole());
  k.pages.release(b);
  EXPECT_EQ(k.pages.match(tokens, 11, b).tokens, 0);
  k.pages.release(b);
  // All pages that no request holds can be allocated, kind by kind.
  Pages c;
  k.pages.extend(0, 32, c);
  EXPECT_EQ(k.window.free(), 0);
  EXPECT_EQ(k.pages.match(tokens, 14, b).tokens, 0);
  k.pages.release(c);
}

}  // namespace
}  // namespace lathe
