#include "engine/schedule/page_allocator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lathe {

Result<PageAllocator> PageAllocator::create(std::span<const PageKind> kinds,
                                            std::int64_t block_tokens, bool prefix_cache,
                                            bool copies) {
  PageAllocator out;
  out.block_tokens_ = block_tokens;
  std::vector<PrefixGroup> groups;
  for (const PageKind& kind : kinds) {
    LATHE_CHECK(block_tokens % kind.rule.page_size == 0, "a block is a whole number of pages");
    out.kinds_.push_back(
        {kind.ledger, kind.ledger->free(), 0,
         std::vector<std::int32_t>(static_cast<std::size_t>(kind.ledger->total()))});
    out.rules_.push_back(kind.rule);
    out.rewrites_ = out.rewrites_ || kind.rule.rewrites;
    out.drops_ = out.drops_ || kind.rule.resume_tokens > 0;
    copies = copies && !kind.rule.rewrites && kind.rule.page_size == block_tokens;
    groups.push_back({kind.ledger, static_cast<std::int32_t>(kind.rule.page_size),
                      static_cast<std::int32_t>(kind.rule.resume_tokens),
                      static_cast<std::int32_t>(kind.rule.chunk_tokens)});
  }
  if (prefix_cache) {
    auto cache = PrefixCache::create(std::move(groups), {.beginnings = copies});
    if (!cache) return cache.error();
    out.cache_ = std::move(*cache);
    LATHE_CHECK(out.cache_->granularity() == block_tokens,
                "the prefix cache has blocks of the same size");
  }
  return out;
}

std::int64_t PageAllocator::total() const {
  std::int64_t sum = 0;
  for (const Kind& kind : kinds_) sum += kind.total;
  return sum;
}

std::int64_t PageAllocator::sole(std::size_t kind, const RequestPages& pages) const {
  if (pages.lists.empty()) return 0;
  const std::vector<std::int32_t>& holders = kinds_[kind].holders;
  return std::ranges::count_if(pages.lists[kind], [&](PageId page) {
    return !page.is_hole() && holders[static_cast<std::size_t>(page.value)] == 1;
  });
}

std::int64_t PageAllocator::held() const {
  std::int64_t sum = 0;
  for (const Kind& kind : kinds_) sum += kind.held;
  return sum;
}

void PageAllocator::hold(std::size_t kind, PageId page) {
  Kind& k = kinds_[kind];
  if (k.holders[static_cast<std::size_t>(page.value)]++ == 0) ++k.held;
}

void PageAllocator::let_go(std::size_t kind, PageId page) {
  if (page.is_hole()) return;
  Kind& k = kinds_[kind];
  if (--k.holders[static_cast<std::size_t>(page.value)] == 0) --k.held;
  LATHE_CHECK(k.ledger->release(page), "a request releases a page that it does not own");
}

void PageAllocator::take(std::size_t kind, std::int64_t n, std::vector<PageId>& pages) {
  if (n == 0) return;
  PageLedger& ledger = *kinds_[kind].ledger;
  if (cache_ && n > ledger.free()) cache_->evict(static_cast<int>(kind), n - ledger.free());
  const auto got = ledger.allocate(n);
  LATHE_CHECK(got, "pages that were available cannot be allocated");
  for (const PageId page : *got) hold(kind, page);
  pages.insert(pages.end(), got->begin(), got->end());
}

void PageAllocator::prepare(RequestPages& pages) const {
  pages.lists.resize(kinds_.size());
  pages.replaced.resize(kinds_.size());
  pages.replaced_ahead.resize(kinds_.size());
}

void PageAllocator::extend(std::int64_t from, std::int64_t to, RequestPages& pages) {
  prepare(pages);
  extend(from, to, pages.lists, pages.replaced);
}

void PageAllocator::extend_ahead(std::int64_t from, std::int64_t to, RequestPages& pages) {
  extend(from, to, pages.lists, pages.replaced_ahead);
}

void PageAllocator::extend(std::int64_t from, std::int64_t to, GroupPages& lists,
                           std::vector<PageId>& replaced) {
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    const PageRule& rule = rules_[k];
    // The fast path of decode rows: most have room on their last page.
    const bool on_page = from % rule.page_size != 0;
    if (on_page && !rule.rewrites && to == from + 1) continue;
    std::vector<PageId>& list = lists[k];
    if (rule.rewrites && on_page) {
      replaced[k] = list.back();
      list.pop_back();
    }
    const std::int64_t more = pages_for(to, rule.page_size) - std::ssize(list);
    const std::int64_t taken = rule.new_pages(from, to);
    list.resize(list.size() + static_cast<std::size_t>(more - taken));
    take(k, taken, list);
  }
}

void PageAllocator::extend_further(std::int64_t to, RequestPages& pages) {
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    const std::int64_t more = pages_for(to, rules_[k].page_size) - std::ssize(pages.lists[k]);
    take(k, more, pages.lists[k]);
  }
}

void PageAllocator::shorten(std::size_t kind, std::int64_t entries, std::vector<PageId>& list) {
  while (std::ssize(list) > entries) {
    let_go(kind, list.back());
    list.pop_back();
  }
}

void PageAllocator::undo(std::int64_t from, RequestPages& pages) {
  for (std::size_t k = 0; k < pages.lists.size(); ++k) {
    let_go(k, std::exchange(pages.replaced_ahead[k], PageId()));
    PageId& replaced = pages.replaced[k];
    shorten(k, pages_for(from, rules_[k].page_size) - (replaced.is_hole() ? 0 : 1), pages.lists[k]);
    if (!replaced.is_hole()) pages.lists[k].push_back(std::exchange(replaced, PageId()));
  }
}

void PageAllocator::confirm(RequestPages& pages) {
  end_copies(pages);
  if (!rewrites_) return;
  for (std::size_t k = 0; k < pages.lists.size(); ++k) {
    let_go(k, std::exchange(pages.replaced[k], std::exchange(pages.replaced_ahead[k], PageId())));
  }
}

void PageAllocator::trim(std::int64_t from, std::int64_t to, RequestPages& pages) {
  if (!drops_ || from / block_tokens_ == to / block_tokens_) return;
  for (std::size_t k = 0; k < pages.lists.size(); ++k) {
    const std::int64_t end = rules_[k].first_needed_entry(to, block_tokens_);
    for (std::int64_t i = rules_[k].first_needed_entry(from, block_tokens_); i < end; ++i) {
      let_go(k, std::exchange(pages.lists[k][static_cast<std::size_t>(i)], PageId()));
    }
  }
}

PageId PageAllocator::last_before(std::size_t kind, std::int64_t from,
                                  const RequestPages& pages) const {
  if (from == 0) return PageId();
  if (!pages.replaced[kind].is_hole()) return pages.replaced[kind];
  return pages.lists[kind][static_cast<std::size_t>((from - 1) / rules_[kind].page_size)];
}

PageId PageAllocator::last_before_ahead(std::size_t kind, std::int64_t from,
                                        const RequestPages& pages) const {
  const PageId replaced = pages.replaced_ahead[kind];
  if (!replaced.is_hole()) return replaced;
  return pages.lists[kind][static_cast<std::size_t>((from - 1) / rules_[kind].page_size)];
}

CachedTokens PageAllocator::match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                                  RequestPages& pages) {
  prepare(pages);
  for (const auto& list : pages.lists) LATHE_CHECK(list.empty(), "match() needs empty lists");
  if (!cache_) return {};
  PrefixMatch match = cache_->match(tokens, max_tokens, pages.cache_salt);
  pages.lists = std::move(match.pages);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    for (const PageId page : pages.lists[k]) {
      if (!page.is_hole()) hold(k, page);
    }
  }
  if (match.beginning == 0) return {match.tokens, match.known};
  pages.copied = match.beginning;
  pages.copied_from = std::move(match.beginning_pages);
  bool room = true;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    hold(k, pages.copied_from[k]);
    room = room && available(k) > 0;
  }
  if (!room) {
    end_copies(pages);
    return {match.tokens, match.known};
  }
  for (std::size_t k = 0; k < kinds_.size(); ++k) take(k, 1, pages.lists[k]);
  const std::int64_t found = match.tokens + match.beginning;
  return {found, found};
}

void PageAllocator::end_copies(RequestPages& pages) {
  for (std::size_t k = 0; k < pages.copied_from.size(); ++k) let_go(k, pages.copied_from[k]);
  pages.copied_from.clear();
  pages.copied = 0;
}

std::int64_t PageAllocator::drop_copies(RequestPages& pages) {
  const std::int64_t tokens = pages.copied;
  if (tokens == 0) return 0;
  end_copies(pages);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    shorten(k, std::ssize(pages.lists[k]) - 1, pages.lists[k]);
  }
  return tokens;
}

void PageAllocator::publish(std::span<const std::int32_t> tokens, RequestPages& pages) {
  if (!cache_) return;
  prepare(pages);
  const auto stored = cache_->insert(tokens, pages.lists, pages.cache_salt);
  LATHE_CHECK(stored, "the pages of a request cannot be cached");
  const GroupPages cached = cache_->stored_pages(tokens, *stored, pages.cache_salt);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    for (std::size_t i = 0; i < cached[k].size(); ++i) {
      PageId& own = pages.lists[k][i];
      const PageId page = cached[k][i];
      if (own == page || own.is_hole()) continue;
      LATHE_CHECK(kinds_[k].ledger->retain(page), "a cached page without an owner");
      hold(k, page);
      let_go(k, own);
      own = page;
    }
  }
}

void PageAllocator::release(RequestPages& pages) {
  end_copies(pages);
  for (std::size_t k = 0; k < pages.lists.size(); ++k) {
    let_go(k, std::exchange(pages.replaced[k], PageId()));
    let_go(k, std::exchange(pages.replaced_ahead[k], PageId()));
    shorten(k, 0, pages.lists[k]);
  }
}

void PageAllocator::clear_cache() {
  if (!cache_) return;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    cache_->evict(static_cast<int>(k), kinds_[k].total);
  }
}

}  // namespace lathe
