#include "engine/page_allocator.h"

#include <algorithm>

#include "base/check.h"

namespace lathe {

Result<PageAllocator> PageAllocator::create(PageLedger& ledger, bool prefix_cache) {
  PageAllocator out(ledger);
  if (prefix_cache) {
    auto cache = PrefixCache::create({{&ledger, ledger.shape().page_size, 0}});
    if (!cache) return cache.error();
    out.cache_ = std::move(*cache);
  }
  return out;
}

void PageAllocator::hold(std::span<const PageId> pages) {
  for (PageId page : pages) {
    if (holders_[static_cast<std::size_t>(page.value)]++ == 0) ++held_;
  }
}

void PageAllocator::let_go(std::span<const PageId> pages) {
  for (PageId page : pages) {
    if (--holders_[static_cast<std::size_t>(page.value)] == 0) --held_;
  }
  LATHE_CHECK(ledger_->release(pages), "a request releases pages that it does not own");
}

void PageAllocator::take(std::int64_t n, std::vector<PageId>& pages) {
  if (n == 0) return;
  if (cache_ && n > ledger_->free()) cache_->evict(0, n - ledger_->free());
  const auto got = ledger_->allocate(n);
  LATHE_CHECK(got, "pages that were available cannot be had");
  hold(*got);
  pages.insert(pages.end(), got->begin(), got->end());
}

std::int64_t PageAllocator::match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                                  std::vector<PageId>& pages) {
  LATHE_CHECK(pages.empty(), "a match fills an empty list");
  if (!cache_) return 0;
  PrefixMatch match = cache_->match(tokens, max_tokens);
  pages = std::move(match.pages[0]);
  hold(pages);
  return match.tokens;
}

void PageAllocator::publish(std::span<const std::int32_t> tokens, std::vector<PageId>& pages) {
  if (!cache_) return;
  const auto stored = cache_->insert(tokens, std::span(&pages, 1));
  LATHE_CHECK(stored, "the pages of a request cannot be cached");
  const PrefixMatch match = cache_->match(tokens, *stored);
  const std::vector<PageId>& shared = match.pages[0];
  hold(shared);
  const std::span<PageId> own = std::span(pages).first(shared.size());
  let_go(own);
  std::copy(shared.begin(), shared.end(), own.begin());
}

void PageAllocator::release(std::vector<PageId>& pages) {
  let_go(pages);
  pages.clear();
}

void PageAllocator::clear_cache() {
  if (cache_) cache_->evict(0, total_);
}

}  // namespace lathe
