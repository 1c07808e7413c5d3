// PageAllocator: allocates pages to requests and shares them through the prefix cache. Pages that
// only the cache holds count as available and are evicted on demand.
//
// There are several kinds of page, each with its own ledger: one for each layer group, and one for
// the slots of each state. A request has a list for each kind.
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
  std::uint64_t cache_salt = 0;  // prompts with equal salts share pages through the prefix cache
  GroupPages lists;              // [kinds], in order of position
  // [kinds] For kinds that a step rewrites: the replaced page, from extend() until confirm() or
  // undo(); else -1.
  std::vector<PageId> replaced;
  std::vector<PageId> replaced_ahead;  // [kinds] the page that extend_ahead() replaced; else -1
  // From match() until confirm(): the first step copies the request's last `copied` cached tokens,
  // less than a page, from these cached pages to the last page of each list.
  std::int64_t copied = 0;
  std::vector<PageId> copied_from;  // [kinds], or empty
};

/// What the prefix cache has of a prompt.
struct CachedTokens {
  std::int64_t tokens = 0;  // that a request need not compute
  // Tokens with a cached block, at least `tokens`. More if no request can resume at the end of the
  // deeper blocks, because pages of a window or a state are missing there.
  std::int64_t known = 0;
};

class PageAllocator {
 public:
  /// Manages the pages that are free at the call. The ledgers must outlive it, and nothing else may
  /// allocate from them. block_tokens: a multiple of every kind's page size. copies: the caller
  /// copies the tokens of RequestPages::copied, so that a prompt that leaves a cached one inside a
  /// page need not compute them; not for kinds of different page sizes, nor with states, which have
  /// no value inside a page. Errors: the prefix cache's.
  static Result<PageAllocator> create(std::span<const PageKind> kinds, std::int64_t block_tokens,
                                      bool prefix_cache, bool copies = false);

  std::span<const PageRule> rules() const { return rules_; }
  std::int64_t block_tokens() const { return block_tokens_; }
  std::int64_t total(std::size_t kind) const { return kinds_[kind].total; }
  /// Pages that no request holds: free, or evictable. The number is exact. In a kind without a
  /// bound a request that holds a cached page also holds the pages before it (match and publish
  /// ensure that), so an unheld page never has a successor in use. Pages of a bounded kind are
  /// evicted one by one.
  std::int64_t available(std::size_t kind) const { return kinds_[kind].total - kinds_[kind].held; }
  /// Pages of the request that no other request holds.
  std::int64_t sole(std::size_t kind, const RequestPages& pages) const;
  /// Pages that neither a request nor the prefix cache holds.
  std::int64_t free(std::size_t kind) const { return kinds_[kind].ledger->free(); }
  /// Sums over all kinds.
  std::int64_t total() const;
  std::int64_t held() const;
  /// Tokens in the prefix cache.
  std::int64_t cached_tokens() const { return cache_ ? cache_->token_count() : 0; }

  /// Allocates the pages that a request with `from` computed tokens needs, by the rules of the
  /// kinds, for a step up to `to` tokens. Precondition: to > from; the pages are available.
  void extend(std::int64_t from, std::int64_t to, RequestPages& pages);
  /// extend() for the step after the one in flight, before confirm() of the latter.
  void extend_ahead(std::int64_t from, std::int64_t to, RequestPages& pages);
  /// Allocates pages for drafts in a step, after its extend(), which has replaced the pages that
  /// the step rewrites.
  void extend_further(std::int64_t to, RequestPages& pages);
  /// After a step: releases the pages that it replaced or copied.
  void confirm(RequestPages& pages);
  /// Releases the pages that a request no longer needs as it goes from `from` to `to` tokens,
  /// leaving holes.
  void trim(std::int64_t from, std::int64_t to, RequestPages& pages);
  /// After a failed step: releases the pages allocated for it and for the step after it.
  void undo(std::int64_t from, RequestPages& pages);
  /// The page of a kind with the last of `from` tokens, as before extend(); -1 if from is 0.
  PageId last_before(std::size_t kind, std::int64_t from, const RequestPages& pages) const;
  /// The page of a kind with the last of `from` tokens, as before extend_ahead().
  PageId last_before_ahead(std::size_t kind, std::int64_t from, const RequestPages& pages) const;

  /// Fills empty lists with the pages of the longest cached prefix of at most max_tokens tokens at
  /// which a request may resume, and with a page for tokens to copy.
  CachedTokens match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                     RequestPages& pages);
  /// Gives up the tokens that match() wants copied, with their pages. Returns their number.
  std::int64_t drop_copies(RequestPages& pages);
  /// Adds the full blocks of `tokens`, all written, to the cache. If the cache already has equal
  /// pages, the request switches to those and its own are freed.
  void publish(std::span<const std::int32_t> tokens, RequestPages& pages);
  /// Releases all pages of the request and empties the lists.
  void release(RequestPages& pages);
  /// Evicts every page that no request holds. Held pages stay cached. Otherwise two requests could
  /// share a page while a third one publishes other pages before it, and available() would be
  /// wrong.
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
  void end_copies(RequestPages& pages);
  void prepare(RequestPages& pages) const;
  void extend(std::int64_t from, std::int64_t to, GroupPages& lists, std::vector<PageId>& replaced);
  void shorten(std::size_t kind, std::int64_t entries, std::vector<PageId>& list);

  std::vector<Kind> kinds_;
  std::vector<PageRule> rules_;  // [kinds]
  std::int64_t block_tokens_ = 1;
  bool rewrites_ = false;  // some kind has PageRule::rewrites
  bool drops_ = false;     // some kind keeps only the pages of the last tokens
  std::optional<PrefixCache> cache_;
};

}  // namespace lathe
