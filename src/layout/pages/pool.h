// Pool: the bytes of pages of one layout for one or more layers, and the ledger of its pages.
//
// Layer l holds pages x page_stride bytes from l * pages * page_stride on; a page number means the
// same page in every layer. The pool starts at a multiple of 64 bytes, and so does every page whose
// stride is such a multiple (with default dims: a page size that is a multiple of 16).
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

/// What a page of a pool holds.
struct PoolPart {
  CacheLayout layout;
  std::int32_t page_size = 64;  // tokens (or compressed entries) of a page
  std::int32_t layers = 1;

  /// Bytes of a page over all layers.
  std::int64_t bytes_per_page() const { return layers * layout.page_stride(page_size); }
};

/// How many pages: exactly one of the two is given, the other stays 0.
struct PoolSize {
  std::int64_t budget_bytes = 0;  // as many whole pages as fit
  std::int64_t pages = 0;
};

struct PoolSpec {
  CacheLayout layout;
  std::int32_t page_size = 64;
  std::int32_t layers = 1;
  std::int64_t budget_bytes = 0;  // this or pages, the other stays 0
  std::int64_t pages = 0;
};

class Pool {
 public:
  /// Errors: a page size or layer count out of range; both or none of budget_bytes and pages; a
  /// budget below one page (the bytes of one are named); more than kMaxSlots slots; no memory.
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

  /// Page lifetimes. The pools of a PoolGroup share one ledger.
  PageLedger& ledger() { return *ledger_; }
  const PageLedger& ledger() const { return *ledger_; }

  /// The pages of one layer; it stays valid for the pool's life, moves of the Pool included.
  /// Precondition: 0 <= layer < layers().
  PoolView view(std::int32_t layer = 0);
  ConstPoolView view(std::int32_t layer = 0) const;

  /// Fills every unheld page of all layers with 0xff, which is NaN in each stored number format
  /// that has one. Host pools only: tests use it to show that such bytes reach no output.
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

/// Pages that parts with one page numbering get: pages, or as many as budget_bytes hold.
/// Errors: as Pool::create().
Result<std::int64_t> pool_pages(std::span<const PoolPart> parts, PoolSize size);

}  // namespace lathe
