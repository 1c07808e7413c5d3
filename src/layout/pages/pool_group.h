// PoolGroup: pools that belong together over one page numbering, such as a model's latent cache and
// its indexer's keys. One ledger says who holds a page in all of them, and a copy of tokens or
// pages copies every plane of every layer of every pool: no part of a token can be left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/pages/pool.h"

namespace lathe {

class PoolGroup {
 public:
  /// One pool per part; size.budget_bytes is divided so that all get the same number of pages.
  /// Parts may differ in page_size (a page of 256 tokens, of 64 entries made from 4 tokens each),
  /// and then tokens cannot be copied by slot; PoolExhausted counts tokens of the first part.
  /// Errors: as Pool::create(); no parts.
  static Result<PoolGroup> create(std::span<const PoolPart> parts, PoolSize size,
                                  const Memory& memory = kHostMemory);

  int pool_count() const { return static_cast<int>(pools_.size()); }
  /// Precondition: 0 <= i < pool_count().
  Pool& pool(int i) { return pools_[static_cast<std::size_t>(i)]; }
  const Pool& pool(int i) const { return pools_[static_cast<std::size_t>(i)]; }

  PageLedger& ledger() { return pools_.front().ledger(); }
  const PageLedger& ledger() const { return pools_.front().ledger(); }
  std::int64_t pages() const { return pools_.front().pages(); }
  std::int64_t bytes_per_page() const;
  std::int64_t bytes() const { return pages() * bytes_per_page(); }
  std::int64_t used_bytes() const { return ledger().used() * bytes_per_page(); }
  void poison_free();

  /// Token dst[i] becomes a copy of token src[i], as if all sources were read before the first
  /// write: lists may overlap, shift and permute. Sources may repeat; other tokens of the pages
  /// keep their bytes. Host pools only. Needs memory for one record, whatever the count. The caller
  /// must know who owns the pages and whether they are shared (copy_pages() first). Errors (nothing
  /// is written then): sizes that differ, a slot outside the pool (holes too), a repeated
  /// destination, parts of different page sizes.
  Result<void> copy_tokens(std::span<const Slot> src, std::span<const Slot> dst);

  /// Whole pages, page padding included, under the same rules: copy-on-write of a shared page.
  Result<void> copy_pages(std::span<const PageId> src, std::span<const PageId> dst);

 private:
  explicit PoolGroup(std::vector<Pool> pools) : pools_(std::move(pools)) {}
  std::vector<Pool> pools_;  // at least one
};

}  // namespace lathe
