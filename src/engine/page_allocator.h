// PageAllocator: the pages of requests, with the prefix cache behind it. Pages that only the cache
// holds count as available; they are evicted when somebody needs them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/page_ledger.h"
#include "layout/prefix_cache.h"

namespace lathe {

class PageAllocator {
 public:
  /// Over the pages that are free at the time; the ledger must outlive it, and nobody else may take
  /// pages from it meanwhile. Errors: the prefix cache's.
  static Result<PageAllocator> create(PageLedger& ledger, bool prefix_cache);

  std::int64_t page_size() const { return ledger_->shape().page_size; }
  std::int64_t total() const { return total_; }
  /// Pages that no request holds: free, or evictable. Exact, because whoever holds a cached page
  /// holds the pages before it too (match and publish see to that), so that a page nobody holds
  /// never has a successor in use.
  std::int64_t available() const { return total_ - held_; }
  /// Tokens in the prefix cache.
  std::int64_t cached_tokens() const { return cache_ ? cache_->token_count() : 0; }

  /// Appends n pages to a request's list. Precondition: 0 <= n <= available().
  void take(std::int64_t n, std::vector<PageId>& pages);
  /// Fills an empty list with the pages of the longest cached prefix of at most max_tokens tokens;
  /// returns its tokens, a multiple of page_size().
  std::int64_t match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                     std::vector<PageId>& pages);
  /// Offers the full pages of `tokens`, all written, to the cache. Where the cache has equal ones
  /// already, the request goes over to those and its own become free.
  void publish(std::span<const std::int32_t> tokens, std::vector<PageId>& pages);
  /// Ends the request's hold on all its pages and empties the list.
  void release(std::vector<PageId>& pages);
  /// Evicts all that no request holds. What requests hold stays cached: were it let go, two of them
  /// could go on sharing a page whose predecessors later come from a third, and available() would
  /// be wrong.
  void clear_cache();

 private:
  explicit PageAllocator(PageLedger& ledger)
      : ledger_(&ledger),
        total_(ledger.free()),
        holders_(static_cast<std::size_t>(ledger.total())) {}
  void hold(std::span<const PageId> pages);
  void let_go(std::span<const PageId> pages);

  PageLedger* ledger_;
  std::optional<PrefixCache> cache_;
  std::int64_t total_ = 0;
  std::int64_t held_ = 0;              // pages with holders
  std::vector<std::int32_t> holders_;  // [pages of the ledger] requests
};

}  // namespace lathe
