// PageAllocator: allocates pages to requests and shares them through the prefix cache. Pages that
// only the cache holds count as available and are evicted on demand.
//
// There are several kinds of page, each with its own ledger: those of every layer group, and the
// slots of states. A request has a list of each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/schedule/schedule.h"
#include "layout/pages/page_ledger.h"
#include "layout/pages/prefix_cache.h"

namespace lathe {

struct PageKind {
  PageLedger* ledger = nullptr;
  PageRule rule;
};

/// The pages of one request.
struct RequestPages {
  GroupPages lists;  // [kinds], in order of position
  // [kinds] For kinds that a step rewrites: the replaced page, from extend() until confirm() or
  // undo(); else -1.
  std::vector<PageId> replaced;
  std::vector<PageId> replaced_ahead;  // [kinds] likewise by extend_ahead()
};

class PageAllocator {
 public:
  /// Manages the pages that are free at the call. The ledgers must outlive it, and nothing else may
  /// take pages from them. block_tokens: a multiple of every kind's page size. Errors: the prefix
  /// cache's.
  static Result<PageAllocator> create(std::span<const PageKind> kinds, std::int64_t block_tokens,
                                      bool prefix_cache);

  std::span<const PageRule> rules() const { return rules_; }
  std::int64_t block_tokens() const { return block_tokens_; }
  std::int64_t total(std::size_t kind) const { return kinds_[kind].total; }
  /// Pages that no request holds: free, or evictable. Exact, because a request that holds a cached
  /// page of a kind without a bound also holds the pages before it (match and publish ensure that),
  /// so an unheld page never has a successor in use; and pages of a bounded kind are evicted one by
  /// one.
  std::int64_t available(std::size_t kind) const { return kinds_[kind].total - kinds_[kind].held; }
  /// Available pages that the prefix cache does not hold either.
  std::int64_t free(std::size_t kind) const { return kinds_[kind].ledger->free(); }
  /// Over all kinds.
  std::int64_t total() const;
  std::int64_t held() const;
  /// Tokens in the prefix cache.
  std::int64_t cached_tokens() const { return cache_ ? cache_->token_count() : 0; }

  /// Allocates the pages that a request with `from` computed tokens needs by its kinds' rules for a
  /// step up to `to` tokens. Precondition: to > from; the pages are available.
  void extend(std::int64_t from, std::int64_t to, RequestPages& pages);
  /// The same for the step behind, before confirm() of this one.
  void extend_ahead(std::int64_t from, std::int64_t to, RequestPages& pages);
  /// The same for drafts in that step, after extend(): pages that the step rewrites have been
  /// replaced.
  void extend_further(std::int64_t to, RequestPages& pages);
  /// After a step: releases the pages that it replaced.
  void confirm(RequestPages& pages);
  /// Releases the pages that a request no longer needs as it goes from `from` to `to` tokens,
  /// leaving holes.
  void trim(std::int64_t from, std::int64_t to, RequestPages& pages);
  /// After a failed step: releases the pages allocated for it, and for a step behind it.
  void undo(std::int64_t from, RequestPages& pages);
  /// The page of a kind that held the last of `from` tokens before extend(); -1 if from is 0.
  PageId last_before(std::size_t kind, std::int64_t from, const RequestPages& pages) const;
  /// Likewise before extend_ahead().
  PageId last_before_ahead(std::size_t kind, std::int64_t from, const RequestPages& pages) const;

  /// Fills empty lists with the pages of the longest cached prefix of at most max_tokens tokens at
  /// which a request may resume; returns its tokens, a multiple of block_tokens().
  std::int64_t match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                     RequestPages& pages);
  /// Adds the full blocks of `tokens`, all written, to the cache. If the cache already has equal
  /// pages, the request switches to those and its own are freed.
  void publish(std::span<const std::int32_t> tokens, RequestPages& pages);
  /// Releases all pages of the request and empties the lists.
  void release(RequestPages& pages);
  /// Evicts every page that no request holds. Held pages stay cached: otherwise two requests could
  /// share a page whose predecessors later come from a third, and available() would be wrong.
  void clear_cache();

 private:
  struct Kind {
    PageLedger* ledger = nullptr;
    std::int64_t total = 0;
    std::int64_t held = 0;              // pages held by requests
    std::vector<std::int32_t> holders;  // [pages of the ledger] number of requests
  };
  PageAllocator() = default;
  void take(std::size_t kind, std::int64_t n, std::vector<PageId>& pages);
  void hold(std::size_t kind, PageId page);
  void let_go(std::size_t kind, PageId page);
  void prepare(RequestPages& pages) const;
  void extend(std::int64_t from, std::int64_t to, GroupPages& lists, std::vector<PageId>& replaced);
  void shorten(std::size_t kind, std::int64_t entries, std::vector<PageId>& list);

  std::vector<Kind> kinds_;
  std::vector<PageRule> rules_;  // [kinds]
  std::int64_t block_tokens_ = 1;
  bool rewrites_ = false;  // some kind does
  bool drops_ = false;     // some kind keeps the last tokens' pages alone
  std::optional<PrefixCache> cache_;
};

}  // namespace lathe
