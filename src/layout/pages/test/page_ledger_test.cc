#include "layout/pages/page_ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/test_scale.h"

namespace lathe {
namespace {

std::vector<PageId> pages(std::initializer_list<int> ids) {
  return std::vector<PageId>(ids.begin(), ids.end());
}

TEST(PageLedger, LowestFreePagesComeFirst) {
  PageLedger ledger({64, 6});
  EXPECT_EQ(*ledger.allocate(4), pages({0, 1, 2, 3}));
  EXPECT_EQ(*ledger.release(pages({2})), 1);
  EXPECT_EQ(*ledger.release(pages({0})), 1);
  EXPECT_EQ(*ledger.allocate(3), pages({0, 2, 4}));
  EXPECT_EQ(*ledger.allocate(0), pages({}));
  EXPECT_EQ(ledger.used(), 5);
  EXPECT_EQ(ledger.free(), 1);
}

TEST(PageLedger, AllOrNothing) {
  PageLedger ledger({64, 4});
  ASSERT_TRUE(ledger.allocate(1));
  const auto r = ledger.allocate(4);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().needed, 4);
  EXPECT_EQ(r.error().available, 3);
  EXPECT_EQ(r.error().largest_pages, 4);
  EXPECT_EQ(r.error().largest_tokens, 256);
  EXPECT_FALSE(r.error().never_fits());
  EXPECT_EQ(r.error().message(),
            "pages: wanted 4 free pages, got 3; a request may hold at most 4 pages (256 tokens) of "
            "this pool; release or evict 1 pages");
  EXPECT_EQ(ledger.free(), 3);
  const auto never = ledger.allocate(5);
  ASSERT_FALSE(never);
  EXPECT_TRUE(never.error().never_fits());
  EXPECT_NE(never.error().message().find("shorten the request"), std::string::npos);
}

TEST(PageLedger, SharedPagesStayUntilTheLastOwner) {
  PageLedger ledger({64, 2});
  const auto got = *ledger.allocate(1);
  ASSERT_TRUE(ledger.retain(got));
  EXPECT_EQ(ledger.owners(got[0]), 2);
  EXPECT_EQ(*ledger.release(got), 0);
  EXPECT_FALSE(ledger.is_free(got[0]));
  EXPECT_EQ(*ledger.release(got), 1);
  EXPECT_TRUE(ledger.is_free(got[0]));
}

TEST(PageLedger, AWriterOutlivesTheOwners) {
  PageLedger ledger({64, 1});
  const PageId page = (*ledger.allocate(1))[0];
  ASSERT_TRUE(ledger.begin_write(page));
  ASSERT_TRUE(ledger.begin_write(page));
  EXPECT_EQ(*ledger.release(page), 0);
  EXPECT_EQ(ledger.free(), 0);
  EXPECT_FALSE(ledger.allocate(1));
  EXPECT_FALSE(ledger.retain(page));  // no new owner for a page that is being freed
  EXPECT_FALSE(ledger.begin_write(page));
  EXPECT_EQ(*ledger.end_write(page), 0);
  EXPECT_EQ(*ledger.end_write(page), 1);
  EXPECT_EQ(*ledger.allocate(1), pages({0}));
  ASSERT_TRUE(ledger.begin_write(page));
  EXPECT_EQ(*ledger.end_write(page), 0);  // still has an owner
}

TEST(PageLedger, BadInputChangesNothing) {
  PageLedger ledger({64, 4});
  ASSERT_TRUE(ledger.allocate(2));
  ASSERT_TRUE(ledger.begin_write(PageId(0)));
  EXPECT_EQ(ledger.release(pages({0, 1, 1})).error().message(),
            "pages[2]: wanted a page with an owner left, got page 1, which has 1 in all; every "
            "owner releases once");
  EXPECT_EQ(ledger.release(pages({0, 3})).error().field, "pages[1]");
  EXPECT_EQ(ledger.release(pages({0, 4})).error().message(),
            "pages[1]: wanted a page from 0 to 3, got 4");
  EXPECT_NE(ledger.release(PageId()).error().message().find("hole"), std::string::npos);
  EXPECT_FALSE(ledger.retain(pages({0, 2})));
  EXPECT_FALSE(ledger.retain(pages({0, -2})));
  EXPECT_FALSE(ledger.begin_write(pages({1, 3})));
  EXPECT_FALSE(ledger.end_write(pages({0, 0})));
  EXPECT_FALSE(ledger.end_write(pages({1})));
  EXPECT_EQ(ledger.owners(PageId(0)), 1);
  EXPECT_EQ(ledger.owners(PageId(1)), 1);
  EXPECT_EQ(ledger.writers(PageId(0)), 1);
  EXPECT_EQ(ledger.writers(PageId(1)), 0);
  EXPECT_EQ(ledger.used(), 2);
}

TEST(PageLedger, APageTwiceInOneList) {
  PageLedger ledger({64, 2});
  ASSERT_TRUE(ledger.allocate(1));
  ASSERT_TRUE(ledger.retain(pages({0, 0})));
  EXPECT_EQ(ledger.owners(PageId(0)), 3);
  EXPECT_EQ(*ledger.release(pages({0, 0, 0})), 1);
  EXPECT_EQ(ledger.free(), 2);
  EXPECT_EQ(*ledger.allocate(2), pages({0, 1}));
}

TEST(PageLedger, AgainstAModel) {
  struct Held {
    int owners = 0, writers = 0;
  };
  std::mt19937 rng(test_seed(42));
  const int total = 24;
  PageLedger ledger({16, total});
  std::map<int, Held> model;  // pages in use
  for (int step = 0; step < 20000 * test_scale(); ++step) {
    std::vector<PageId> list(rng() % 4);
    for (PageId& p : list) p = PageId(static_cast<int>(rng() % (total + 2)) - 1);
    std::map<int, Held> after = model;
    bool fine = true;
    switch (rng() % 6) {
      case 0:
      case 1: {
        const auto n = static_cast<std::int64_t>(rng() % 8);
        const auto got = ledger.allocate(n);
        fine = n <= total - static_cast<std::int64_t>(model.size());
        ASSERT_EQ(got.ok(), fine);
        if (!fine) break;
        std::vector<PageId> want;
        for (int p = 0; static_cast<std::int64_t>(want.size()) < n; ++p) {
          if (!model.contains(p)) want.emplace_back(p);
        }
        ASSERT_EQ(*got, want);
        for (PageId p : want) after[p.value].owners = 1;
        break;
      }
      case 2:
      case 3: {
        const bool write = rng() % 2 != 0;
        for (PageId p : list) fine &= model.contains(p.value) && model[p.value].owners > 0;
        for (PageId p : list) ++(write ? after[p.value].writers : after[p.value].owners);
        ASSERT_EQ((write ? ledger.begin_write(list) : ledger.retain(list)).ok(), fine);
        break;
      }
      default: {
        const bool write = rng() % 2 != 0;
        std::int64_t freed = 0;
        for (PageId p : list) {
          if (!after.contains(p.value)) {
            fine = false;
            break;
          }
          Held& h = after[p.value];
          if (--(write ? h.writers : h.owners) < 0) fine = false;
        }
        for (PageId p : list) {
          const auto it = after.find(p.value);
          if (it == after.end() || it->second.owners != 0 || it->second.writers != 0) continue;
          after.erase(it);
          ++freed;
        }
        const auto got = write ? ledger.end_write(list) : ledger.release(list);
        ASSERT_EQ(got.ok(), fine);
        if (fine) {
          ASSERT_EQ(*got, freed);
        }
      }
    }
    if (fine) model = after;
    ASSERT_EQ(ledger.used(), static_cast<std::int64_t>(model.size()));
    ASSERT_EQ(ledger.free() + ledger.used(), ledger.total());
    for (int p = 0; p < total; ++p) {
      const Held want = model.contains(p) ? model[p] : Held{};
      ASSERT_EQ(ledger.owners(PageId(p)), want.owners);
      ASSERT_EQ(ledger.writers(PageId(p)), want.writers);
      ASSERT_EQ(ledger.is_free(PageId(p)), !model.contains(p));
    }
  }
}

}  // namespace
}  // namespace lathe
