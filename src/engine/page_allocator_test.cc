#include "engine/page_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/test_scale.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Pages = std::vector<PageId>;
using Tokens = std::vector<std::int32_t>;

PageAllocator make(PageLedger& ledger, bool prefix_cache = true) {
  auto made = PageAllocator::create(ledger, prefix_cache);
  EXPECT_TRUE(made);
  return std::move(*made);
}

TEST(PageAllocator, CachedPagesAreAvailableUntilSomebodyHoldsThem) {
  PageLedger ledger({2, 4});
  PageAllocator pages = make(ledger);
  const Tokens tokens{1, 2, 3, 4, 5};
  Pages a;
  pages.take(3, a);
  EXPECT_EQ(pages.available(), 1);
  pages.publish(tokens, a);
  EXPECT_EQ(pages.cached_tokens(), 4);
  pages.release(a);
  EXPECT_THAT(a, IsEmpty());
  EXPECT_EQ(pages.available(), 4);
  EXPECT_EQ(ledger.free(), 2);

  Pages b;
  EXPECT_EQ(pages.match(tokens, 4, b), 4);
  EXPECT_THAT(b, ElementsAre(PageId(0), PageId(1)));
  EXPECT_EQ(pages.available(), 2);
  Pages c;
  EXPECT_EQ(pages.match(tokens, 3, c), 2);
  EXPECT_EQ(pages.available(), 2);  // page 0 is held twice
  pages.release(b);
  EXPECT_EQ(pages.available(), 3);
  // Page 1 is evicted for it, page 0 stays.
  pages.take(3, b);
  EXPECT_EQ(pages.available(), 0);
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
  pages.take(2, a);
  pages.take(3, b);
  pages.publish(tokens, a);
  EXPECT_EQ(pages.available(), 3);
  pages.publish(tokens, b);  // b's last page is not full of tokens and stays its own
  EXPECT_THAT(b, ElementsAre(PageId(0), PageId(1), PageId(4)));
  EXPECT_EQ(pages.available(), 5);
  pages.release(a);
  EXPECT_EQ(pages.available(), 5);
  pages.release(b);
  EXPECT_EQ(pages.available(), 8);
}

TEST(PageAllocator, ClearingKeepsWhatRequestsHold) {
  PageLedger ledger({1, 8});
  PageAllocator pages = make(ledger);
  Pages a;
  pages.take(3, a);
  pages.publish(Tokens{1, 2, 3}, a);
  Pages b;
  EXPECT_EQ(pages.match(Tokens{1, 2, 9}, 2, b), 2);
  pages.release(a);
  pages.clear_cache();
  EXPECT_EQ(pages.cached_tokens(), 2);
  pages.release(b);
  pages.clear_cache();
  EXPECT_EQ(pages.cached_tokens(), 0);
  EXPECT_EQ(ledger.free(), 8);
}

TEST(PageAllocator, WithoutACacheNothingIsFound) {
  PageLedger ledger({2, 4});
  PageAllocator pages = make(ledger, false);
  Pages a;
  pages.take(2, a);
  pages.publish(Tokens{1, 2, 3, 4}, a);
  EXPECT_THAT(a, ElementsAre(PageId(0), PageId(1)));
  pages.release(a);
  EXPECT_EQ(ledger.free(), 4);
  EXPECT_EQ(pages.match(Tokens{1, 2, 3, 4}, 4, a), 0);
  EXPECT_THAT(a, IsEmpty());
}

TEST(PageAllocator, TakesOnlyWhatIsFreeAtTheStart) {
  PageLedger ledger({2, 4});
  ASSERT_TRUE(ledger.allocate(1));
  PageAllocator pages = make(ledger);
  EXPECT_EQ(pages.total(), 3);
  Pages a;
  pages.take(3, a);
  EXPECT_EQ(pages.available(), 0);
}

// All that is available can be had, whoever shares what; and a match gives the pages whose tokens
// those are.
TEST(PageAllocator, WhatIsAvailableCanBeHad) {
  std::mt19937 rng(test_seed(6));
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
  for (int round = 0; round < 200 * test_scale(); ++round) {
    const auto page_size = static_cast<std::int32_t>(1 + pick(3));
    PageLedger ledger({page_size, static_cast<std::int64_t>(3 + pick(20))});
    PageAllocator pages = make(ledger);
    struct User {
      Tokens tokens;
      Pages pages;
    };
    std::vector<User> users;
    std::vector<Tokens> written(static_cast<std::size_t>(ledger.total()));
    const auto write = [&](User& u, std::size_t from) {
      for (std::size_t i = from; i < u.pages.size(); ++i) {
        written[static_cast<std::size_t>(u.pages[i].value)] = Tokens(
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
        for (std::size_t i = 0; i < u.pages.size(); ++i) {
          ASSERT_EQ(written[static_cast<std::size_t>(u.pages[i].value)],
                    Tokens(u.tokens.begin(),
                           u.tokens.begin() + static_cast<std::ptrdiff_t>(i + 1) * page_size));
        }
        const std::size_t found = u.pages.size();
        const auto more = static_cast<std::int64_t>(count - found);
        if (more > pages.available()) {
          pages.release(u.pages);
          continue;
        }
        pages.take(more, u.pages);
        write(u, found);
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
    pages.take(pages.available(), rest);  // aborts where it cannot be had
    EXPECT_EQ(ledger.free(), 0);
    pages.release(rest);
    for (User& u : users) pages.release(u.pages);
    pages.clear_cache();
    EXPECT_EQ(ledger.free(), ledger.total());
  }
}

}  // namespace
}  // namespace lathe
