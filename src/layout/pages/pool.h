// Pool: pages of one layout for one or more layers, and the ledger of these pages.
//
// Layer l has pages x page_stride bytes, from l * pages * page_stride on. A page number names a
// page in every layer. The pool is 64-byte aligned; pages are too if the stride is a multiple of 64
// (with default dims: if the page size is a multiple of 16).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "layout/layout.h"
#include "layout/pages/page_ledger.h"
#include "layout/pages/pool_view.h"

namespace lathe {

inline constexpr std::int32_t kMaxPoolLayers = 4096;

/// Layout and size of a pool's pages.
struct PoolPart {
  CacheLayout layout;
  std::int32_t page_size = 64;  // tokens (or compressed entries) per page
  std::int32_t layers = 1;

  /// Bytes of a page in all layers.
  std::int64_t bytes_per_page() const { return layers * layout.page_stride(page_size); }
};

/// The number of pages. Exactly one of the two is set, the other is 0.
struct PoolSize {
  std::int64_t budget_bytes = 0;  // as many whole pages as fit in these bytes
  std::int64_t pages = 0;
};

struct PoolSpec {
  CacheLayout layout;
  std::int32_t page_size = 64;
  std::int32_t layers = 1;
  std::int64_t budget_bytes = 0;  // either this or pages; the other is 0
  std::int64_t pages = 0;
};

class Pool {
 public:
  /// Errors: a page size or layer count out of range; both or neither of budget_bytes and pages; a
  /// budget smaller than a page (it says the bytes of one); more than kMaxSlots slots; no memory.
  static Result<Pool> create(const PoolSpec& spec, const Memory& memory = kHostMemory);

  const CacheLayout& layout() const { return part_.layout; }
  std::int32_t page_size() const { return part_.page_size; }
  std::int32_t layers() const { return part_.layers; }
  std::int64_t pages() const { return shape().pages; }
  PoolShape shape() const { return {part_.page_size, ledger_->total()}; }

  std::int64_t page_stride() const { return part_.layout.page_stride(part_.page_size); }
  std::int64_t bytes_per_page() const { return part_.bytes_per_page(); }
  std::int64_t bytes() const { return pages() * bytes_per_page(); }
  std::int64_t used_bytes() const { return ledger_->used() * bytes_per_page(); }

  /// Owners and writers of the pages. The pools of a PoolGroup share a ledger.
  PageLedger& ledger() { return *ledger_; }
  const PageLedger& ledger() const { return *ledger_; }

  /// The pages of a layer. Valid as long as the pool lives, also after the Pool is moved.
  /// Precondition: 0 <= layer < layers().
  PoolView view(std::int32_t layer = 0);
  ConstPoolView view(std::int32_t layer = 0) const;

  /// Fills all free pages, in all layers, with 0xff, which is NaN in every stored number format
  /// that has NaN. For tests that free pages do not affect any output. Host pools only.
  void poison_free();

 private:
  friend class PoolGroup;
  static Result<Pool> create_over(const PoolPart& part, std::shared_ptr<PageLedger> ledger,
                                  const Memory& memory);
  Pool(const PoolPart& part, std::shared_ptr<PageLedger> ledger, OwnedBytes bytes)
      : part_(part), ledger_(std::move(ledger)), bytes_(std::move(bytes)) {}

  PoolPart part_;
  std::shared_ptr<PageLedger> ledger_;  // never null; shared by the pools of a group
  OwnedBytes bytes_;                    // [layers, pages] x page_stride
};

/// Number of pages for pools that share page numbers: size.pages, or as many as fit in
/// size.budget_bytes. Errors: like Pool::create().
Result<std::int64_t> pool_pages(std::span<const PoolPart> parts, PoolSize size);

}  // namespace lathe
