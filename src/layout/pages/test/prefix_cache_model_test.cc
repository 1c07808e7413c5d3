// PrefixCache against a simple model: a map from whole token prefixes to pages, with linear search.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/test_scale.h"
#include "layout/pages/prefix_cache.h"

namespace lathe {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Entry {
  GroupPages pages;  // of this block only
  std::int64_t used = 0;
  std::vector<std::int64_t> window;
  std::uint64_t hash = 0;
};

struct Request {
  Tokens tokens;
  GroupPages pages;
};

class Model {
 public:
  Model(std::vector<PrefixGroup> groups, std::size_t block)
      : groups_(std::move(groups)), block_(block) {}

  std::size_t per(std::size_t g) const {
    return block_ / static_cast<std::size_t>(groups_[g].tokens_per_page);
  }

  PrefixMatch match(const Tokens& tokens, std::int64_t most) {
    const auto limit = std::min(tokens.size(), static_cast<std::size_t>(most));
    std::int64_t known = 0;
    for (std::size_t n = limit / block_ * block_; n > 0; n -= block_) {
      if (!entries_.contains(prefix(tokens, n))) continue;
      known = std::max(known, static_cast<std::int64_t>(n));
      PrefixMatch m = made(static_cast<std::int64_t>(n), known);
      bool whole = true;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        const auto size = static_cast<std::size_t>(groups_[g].tokens_per_page);
        const std::size_t w = window(g, n);
        for (std::size_t at = 0; at < n; at += size) {
          const Entry& e = entries_.at(prefix(tokens, at / block_ * block_ + block_));
          // Whether any token of the page is among the last w before n.
          const bool needed = w == 0 || at + size + w > n;
          const PageId page = e.pages[g][at % block_ / size];
          m.pages[g].push_back(needed ? page : PageId());
          if (needed && page.is_hole()) whole = false;
        }
      }
      if (!whole) continue;
      touch(tokens, n);
      return m;
    }
    return made(0, known);
  }

  // Checks the beginning of a block that a match found after its whole blocks.
  void match_beginning(const Tokens& tokens, std::int64_t most, const PrefixMatch& got) {
    const auto n = static_cast<std::size_t>(got.tokens);
    const Tokens limited = prefix(tokens, std::min(tokens.size(), static_cast<std::size_t>(most)));
    std::size_t longest = 0;
    Entry* used = nullptr;
    for (auto& [at, entry] : entries_) {
      if (at.size() != n + block_ ||
          !std::equal(at.begin(), at.begin() + got.tokens, limited.begin())) {
        continue;
      }
      const auto equal = std::ranges::mismatch(at, limited).in1 - at.begin();
      const auto more = static_cast<std::size_t>(equal) - n;
      const bool whole = std::ranges::none_of(
          entry.pages, [](const auto& pages) { return pages.front().is_hole(); });
      if (whole) longest = std::max(longest, more);
      std::vector<PageId> first;
      for (const auto& pages : entry.pages) first.push_back(pages.front());
      if (more == static_cast<std::size_t>(got.beginning) && first == got.beginning_pages) {
        used = &entry;
      }
    }
    const bool windows = std::ranges::any_of(
        groups_, [](const PrefixGroup& group) { return group.window_tokens > 0; });
    // In groups with windows another block may have holes in place of pages.
    if (got.known > got.tokens) longest = 0;
    ASSERT_LE(static_cast<std::size_t>(got.beginning), longest);
    if (!windows) {
      ASSERT_EQ(static_cast<std::size_t>(got.beginning), longest);
    }
    if (got.beginning == 0) return;
    ASSERT_NE(used, nullptr);
    if (n == 0) ++tick_;
    used->used = tick_;
  }

  void insert(const Tokens& tokens, const GroupPages& pages) {
    std::uint64_t parent = kRootHash;
    const std::size_t end = tokens.size() / block_ * block_;
    for (std::size_t n = block_; n <= end; n += block_) {
      Entry& e = entries_[prefix(tokens, n)];
      if (e.pages.empty()) {
        e.pages.resize(groups_.size());
        for (std::size_t g = 0; g < groups_.size(); ++g) e.pages[g].resize(per(g));
        e.window.resize(groups_.size(), 0);
        e.hash = prefix_hash(parent, std::span(tokens).subspan(n - block_, block_));
      }
      parent = e.hash;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        for (std::size_t i = 0; i < per(g); ++i) {
          const PageId page = pages[g][(n / block_ - 1) * per(g) + i];
          if (e.pages[g][i].is_hole()) e.pages[g][i] = page;
        }
      }
    }
    if (end > 0) touch(tokens, end);
  }

  // others(g, page): whether the page has another owner or a writer.
  template <class Others>
  GroupPages evict(std::size_t g, std::size_t n, Others others) {
    GroupPages freed(groups_.size());
    const bool window = groups_[g].window_tokens > 0;
    while (freed[g].size() < n) {
      std::map<Tokens, Entry>::iterator best = entries_.end();
      bool best_whole = false;
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        const auto next = std::next(it);
        const bool leaf = next == entries_.end() || next->first.size() <= it->first.size() ||
                          !std::equal(it->first.begin(), it->first.end(), next->first.begin());
        bool any = false, alone = true;
        for (std::size_t h = 0; h < groups_.size(); ++h) {
          for (PageId p : it->second.pages[h]) {
            if (p.is_hole()) continue;
            if (others(h, p)) alone = false;
            if (h == g && !others(h, p)) any = true;
          }
        }
        const bool whole = leaf && alone;
        if (window ? !any : !whole) continue;
        if (best == entries_.end() || key(*it, g) < key(*best, g)) {
          best = it;
          best_whole = whole;
        }
      }
      if (best == entries_.end()) break;
      for (std::size_t h = 0; h < groups_.size(); ++h) {
        if (!best_whole && h != g) continue;
        for (PageId& p : best->second.pages[h]) {
          if (p.is_hole() || others(h, p)) continue;
          freed[h].push_back(p);
          p = PageId();
        }
      }
      if (best_whole) remove(best);
    }
    return freed;
  }

  const std::map<Tokens, Entry>& entries() const { return entries_; }

 private:
  // Also removes predecessors without pages and without other successors.
  void remove(std::map<Tokens, Entry>::iterator it) {
    Tokens left = it->first;
    entries_.erase(it);
    while (left.size() > block_) {
      left.resize(left.size() - block_);
      const auto parent = entries_.find(left);
      const auto next = std::next(parent);
      if (next != entries_.end() && next->first.size() > left.size() &&
          std::equal(left.begin(), left.end(), next->first.begin())) {
        return;
      }
      for (const auto& list : parent->second.pages) {
        for (const PageId p : list) {
          if (!p.is_hole()) return;
        }
      }
      entries_.erase(parent);
    }
  }
  PrefixMatch made(std::int64_t tokens, std::int64_t known) const {
    PrefixMatch out;
    out.tokens = tokens;
    out.pages.resize(groups_.size());
    out.known = known;
    return out;
  }
  static Tokens prefix(const Tokens& t, std::size_t n) {
    return Tokens(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(n));
  }
  std::tuple<std::int64_t, std::int64_t, std::uint64_t> key(const std::pair<const Tokens, Entry>& e,
                                                            std::size_t g) const {
    return {groups_[g].window_tokens > 0 ? e.second.window[g] : e.second.used,
            -static_cast<std::int64_t>(e.first.size()), e.second.hash};
  }
  void touch(const Tokens& tokens, std::size_t end) {
    ++tick_;
    for (std::size_t n = block_; n <= end; n += block_) {
      Entry& e = entries_.at(prefix(tokens, n));
      e.used = tick_;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (n + window(g, end) > end) e.window[g] = tick_;
      }
    }
  }

  // Tokens before `end` that a request needs to resume there; 0: all. Chunks begin at multiples of
  // their size, and the last page is kept even where one begins.
  std::size_t window(std::size_t g, std::size_t end) const {
    const auto chunk = static_cast<std::size_t>(groups_[g].chunk_tokens);
    if (chunk == 0) return static_cast<std::size_t>(groups_[g].window_tokens);
    std::size_t first = 0;
    while (first + chunk <= end) first += chunk;
    return first == end ? 1 : end - first;
  }

  std::vector<PrefixGroup> groups_;
  std::size_t block_;
  std::map<Tokens, Entry> entries_;  // key: tokens from the prompt's start to the block's end
  std::int64_t tick_ = 0;
};

struct Shape {
  int tokens_per_page, window, chunk = 0;
};

void run(const std::vector<Shape>& shapes, unsigned seed, int base_steps, bool beginnings = false) {
  std::mt19937 rng(test_seed(seed));
  const int steps = base_steps * test_scale();
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng()) % n; };
  std::vector<PageLedger> ledgers;
  for (const Shape& s : shapes) ledgers.emplace_back(PoolShape{4, 160 / s.tokens_per_page});
  std::vector<PrefixGroup> groups;
  for (std::size_t g = 0; g < shapes.size(); ++g) {
    const Shape& s = shapes[g];
    groups.push_back({&ledgers[g], s.tokens_per_page, s.window, s.chunk});
  }
  std::map<std::uint64_t, std::uint64_t> replayed;  // hash to parent
  PrefixCacheOptions options;
  options.on_event = [&](const PrefixEvent& e) {
    if (e.kind == PrefixEventKind::stored) {
      EXPECT_TRUE(e.parent_hash == kRootHash || replayed.contains(e.parent_hash));
      EXPECT_TRUE(replayed.emplace(e.hash, e.parent_hash).second);
    } else {
      EXPECT_EQ(replayed.erase(e.hash), 1u);
      for (const auto& [hash, parent] : replayed) EXPECT_NE(parent, e.hash);
    }
  };
  options.beginnings = beginnings;
  auto made = PrefixCache::create(groups, options);
  ASSERT_TRUE(made);
  PrefixCache& cache = *made;
  const auto block = static_cast<std::size_t>(cache.granularity());
  Model model(groups, block);
  std::vector<Request> requests;
  std::vector<std::pair<std::size_t, PageId>> writing;

  const auto others = [&](std::size_t g, PageId page) {
    for (const Request& r : requests) {
      if (std::count(r.pages[g].begin(), r.pages[g].end(), page) > 0) return true;
    }
    return std::count(writing.begin(), writing.end(), std::pair(g, page)) > 0;
  };
  const auto evict = [&](std::size_t g, std::size_t n) {
    const auto want = model.evict(g, n, others);
    const Evicted got = cache.evict(static_cast<int>(g), static_cast<std::int64_t>(n));
    ASSERT_EQ(got.pages, want);
  };
  const auto finish = [&](std::size_t i) {
    const Request r = requests[i];
    requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(i));
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (PageId p : r.pages[g]) {
        if (p.is_hole()) continue;
        ASSERT_TRUE(ledgers[g].release(p));
      }
    }
  };

  std::int64_t hits = 0, begun = 0, evictions = 0, blocks = 0;
  for (int step = 0; step < steps; ++step) {
    // Few requests at a time, so most pages are only in the cache and may be evicted.
    switch (requests.size() < 5 ? below(8) : 4) {
      case 0:
      case 1:
      case 2: {  // a request arrives, uses cached pages and allocates the rest
        Request r;
        for (std::size_t b = below(6) + 1; b > 0; --b) {
          r.tokens.insert(r.tokens.end(), block, static_cast<std::int32_t>(below(2)));
          if (below(8) == 0) r.tokens.back() = 5;  // differs only in the last token
        }
        r.tokens.resize(r.tokens.size() + below(block), 3);
        const auto most = static_cast<std::int64_t>(below(r.tokens.size() + 2));
        const PrefixMatch want = model.match(r.tokens, most), got = cache.match(r.tokens, most);
        ASSERT_EQ(got.tokens, want.tokens);
        ASSERT_EQ(got.known, want.known);
        ASSERT_EQ(got.pages, want.pages);
        ASSERT_LE(got.tokens + got.beginning, most);
        hits += got.tokens > 0;
        begun += got.beginning > 0;
        if (beginnings) model.match_beginning(r.tokens, most, got);
        ASSERT_FALSE(testing::Test::HasFatalFailure());
        for (std::size_t g = 0; g < got.beginning_pages.size(); ++g) {
          ASSERT_TRUE(ledgers[g].release(got.beginning_pages[g]));
        }
        r.pages = got.pages;
        requests.push_back(r);
        for (std::size_t g = 0; g < groups.size(); ++g) {
          const auto size = static_cast<std::size_t>(groups[g].tokens_per_page);
          const auto need = (r.tokens.size() + size - 1) / size - r.pages[g].size();
          auto fresh = ledgers[g].allocate(static_cast<std::int64_t>(need));
          if (!fresh) {
            ++evictions;
            evict(g, static_cast<std::size_t>(fresh.error().needed - fresh.error().available));
            fresh = ledgers[g].allocate(static_cast<std::int64_t>(need));
          }
          if (!fresh) {
            finish(requests.size() - 1);
            break;
          }
          auto& mine = requests.back().pages[g];
          mine.insert(mine.end(), fresh->begin(), fresh->end());
        }
        break;
      }
      case 3: {  // a request releases a page before its window
        if (requests.empty()) break;
        Request& r = requests[below(requests.size())];
        const std::size_t g = below(groups.size());
        if (groups[g].window_tokens == 0) break;
        PageId& page = r.pages[g][below(r.pages[g].size())];
        if (page.is_hole()) break;
        ASSERT_TRUE(ledgers[g].release(page));
        page = PageId();
        break;
      }
      case 4:
      case 5: {  // a request ends; usually its pages are inserted in the cache
        if (requests.empty()) break;
        const std::size_t i = below(requests.size());
        const Request r = requests[i];
        bool written = false;
        for (const auto& [g, page] : writing) {
          written |= std::count(r.pages[g].begin(), r.pages[g].end(), page) > 0;
        }
        const Tokens tokens(r.tokens.begin(), r.tokens.begin() + static_cast<std::ptrdiff_t>(
                                                                     below(r.tokens.size() + 1)));
        if (!written && below(5) != 0) {
          model.insert(tokens, r.pages);
          const auto got = cache.insert(tokens, r.pages);
          ASSERT_TRUE(got) << got.error().message();
          ASSERT_EQ(*got, static_cast<std::int64_t>(tokens.size() / block * block));
        }
        if (below(4) != 0) finish(i);
        break;
      }
      case 6: {  // a write to a request's page begins, or the oldest write ends
        if (writing.size() < 3 && !requests.empty()) {
          const Request& r = requests[below(requests.size())];
          const std::size_t g = below(groups.size());
          const PageId page = r.pages[g][below(r.pages[g].size())];
          if (page.is_hole()) break;
          ASSERT_TRUE(ledgers[g].begin_write(page));
          writing.emplace_back(g, page);
        } else if (!writing.empty()) {
          ASSERT_TRUE(ledgers[writing.front().first].end_write(writing.front().second));
          writing.erase(writing.begin());
        }
        break;
      }
      default:
        if (below(3) == 0) evict(below(groups.size()), below(6));
    }

    // The owners of a page are exactly the requests and the blocks that have it.
    ASSERT_EQ(cache.block_count(), static_cast<std::int64_t>(model.entries().size()));
    blocks += cache.block_count();
    std::set<std::uint64_t> hashes;
    for (const auto& [tokens, entry] : model.entries()) hashes.insert(entry.hash);
    ASSERT_EQ(hashes.size(), replayed.size());
    for (const auto& [hash, parent] : replayed) ASSERT_TRUE(hashes.contains(hash));
    for (std::size_t g = 0; g < groups.size(); ++g) {
      std::vector<int> owners(static_cast<std::size_t>(ledgers[g].total()), 0);
      std::int64_t held = 0;
      for (const Request& r : requests) {
        for (PageId p : r.pages[g]) {
          if (!p.is_hole()) ++owners[static_cast<std::size_t>(p.value)];
        }
      }
      for (const auto& [tokens, entry] : model.entries()) {
        for (PageId p : entry.pages[g]) {
          if (p.is_hole()) continue;
          ++owners[static_cast<std::size_t>(p.value)];
          ++held;
        }
      }
      ASSERT_EQ(cache.page_count(static_cast<int>(g)), held);
      ASSERT_EQ(ledgers[g].free() + ledgers[g].used(), ledgers[g].total());
      for (std::size_t p = 0; p < owners.size(); ++p) {
        ASSERT_EQ(ledgers[g].owners(PageId(static_cast<std::int32_t>(p))), owners[p]);
      }
    }
  }
  EXPECT_GT(hits, steps / 50);
  EXPECT_EQ(begun > steps / 50, beginnings);
  EXPECT_GT(evictions, steps / 200);  // evictions because a pool was exhausted
  EXPECT_GT(blocks, steps);

  while (!requests.empty()) finish(0);
  for (const auto& [g, page] : writing) ASSERT_TRUE(ledgers[g].end_write(page));
  cache.clear();
  EXPECT_TRUE(replayed.empty());
  EXPECT_EQ(cache.block_count(), 0);
  for (const PageLedger& ledger : ledgers) EXPECT_EQ(ledger.used(), 0);
}

TEST(PrefixCacheModel, OneGroup) { run({{4, 0}}, 1, 40000); }
TEST(PrefixCacheModel, TwoPageSizes) { run({{2, 0}, {8, 0}}, 2, 25000); }
TEST(PrefixCacheModel, SizesThatDoNotDivide) { run({{4, 0}, {6, 0}}, 3, 25000); }
TEST(PrefixCacheModel, AWindowBesideAFullGroup) { run({{4, 0}, {2, 5}}, 4, 30000); }
TEST(PrefixCacheModel, AWindowOverSeveralBlocks) { run({{4, 0}, {4, 10}}, 5, 30000); }
TEST(PrefixCacheModel, ChunksBesideAFullGroup) { run({{4, 0}, {2, 9, 10}}, 11, 30000); }
TEST(PrefixCacheModel, ChunksOfBlocks) { run({{4, 0}, {4, 15, 16}}, 12, 30000); }
TEST(PrefixCacheModel, WindowsOnly) { run({{2, 3}, {4, 9}}, 6, 30000); }
TEST(PrefixCacheModel, FullWindowAndState) { run({{4, 0}, {4, 8}, {4, 1}}, 7, 25000); }
TEST(PrefixCacheModel, BeginningsOfBlocks) { run({{4, 0}}, 8, 30000, true); }
TEST(PrefixCacheModel, BeginningsInSeveralGroups) { run({{4, 0}, {4, 0}}, 9, 20000, true); }
TEST(PrefixCacheModel, BeginningsWithAWindow) { run({{4, 0}, {4, 8}}, 10, 30000, true); }

}  // namespace
}  // namespace lathe
