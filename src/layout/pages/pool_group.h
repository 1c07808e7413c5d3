// PoolGroup: pools that share page numbers and a ledger, such as a model's latent cache and its
// indexer's keys. Copies of tokens or pages copy every plane of every layer of every pool, so no
// part of a token can be missed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/pages/pool.h"

namespace lathe {

class PoolGroup {
 public:
  /// One pool per part. size.budget_bytes is for all pools together; all get the same number of
  /// pages. Parts may have different page_size (256 tokens; 64 entries of 4 tokens each). Tokens
  /// cannot be copied by slot then, and PoolExhausted counts tokens of the first part. Errors: like
  /// Pool::create(); no parts.
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

  /// Copies token src[i] to dst[i], as if all sources were read before the first write, so the
  /// lists may overlap. A source may repeat. Other tokens are unchanged. Needs memory for one
  /// record, however many are copied. Does not check owners: before writing to a shared page the
  /// caller must copy it (copy_pages()). Host pools only. Errors, with nothing written: lists of
  /// different sizes; a slot that is -1 or outside the pool; a repeated destination; parts of
  /// different page sizes.
  Result<void> copy_tokens(std::span<const Slot> src, std::span<const Slot> dst);

  /// Copies whole pages, padding included, by the rules of copy_tokens(). For copy-on-write of a
  /// shared page.
  Result<void> copy_pages(std::span<const PageId> src, std::span<const PageId> dst);

 private:
  explicit PoolGroup(std::vector<Pool> pools) : pools_(std::move(pools)) {}
  std::vector<Pool> pools_;  // at least one
};

}  // namespace lathe
