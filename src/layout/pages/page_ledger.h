// PageLedger: who holds which page of a pool, and which pages are free.
//
// A page has two independent lifetimes:
//   owners   requests and the prefix cache that refer to it; counted, so that it can be shared
//   writers  kernels and transfers that are still writing into it
// It is free only when both are over. A page that its last owner released under an active writer
// waits for end_write(): handed out earlier, it would receive another request's bytes.
//
// Not thread-safe: the one thread that schedules calls it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// An allocation failed for want of free pages, and took none.
struct PoolExhausted {
  std::int64_t needed = 0;          // pages asked for
  std::int64_t available = 0;       // pages free
  std::int64_t largest_pages = 0;   // what a request could hold were the pool empty
  std::int64_t largest_tokens = 0;  // the same in tokens

  bool never_fits() const { return needed > largest_pages; }
  Error error() const;
  std::string message() const { return error().message(); }
};

class PageLedger {
 public:
  /// All pages free. Precondition: check_pool_shape(shape) passes.
  explicit PageLedger(PoolShape shape);

  /// Takes n pages, each with one owner: all of them or none. Takes the lowest-numbered free pages,
  /// in ascending order, so that the answer depends on which pages are free and not on their
  /// history. O(log pages) a page. Precondition: n >= 0.
  Result<std::vector<PageId>, PoolExhausted> allocate(std::int64_t n);

  /// One more owner for each page. A page may be listed several times. Errors (nothing is changed
  /// then): an unknown page, a page without an owner.
  Result<void> retain(std::span<const PageId> pages);
  Result<void> retain(PageId page) { return retain(std::span(&page, 1)); }

  /// One owner fewer for each page; returns the number of pages that became free by it.
  /// Errors (nothing is changed then): an unknown page, more releases than owners.
  Result<std::int64_t> release(std::span<const PageId> pages);
  Result<std::int64_t> release(PageId page) { return release(std::span(&page, 1)); }

  /// A writer starts on each page; writers are counted as owners are.
  /// Errors (nothing is changed then): an unknown page, a page without an owner.
  Result<void> begin_write(std::span<const PageId> pages);
  Result<void> begin_write(PageId page) { return begin_write(std::span(&page, 1)); }

  /// A writer has finished; returns the number of pages that became free by it.
  /// Errors (nothing is changed then): an unknown page, more ends than begins.
  Result<std::int64_t> end_write(std::span<const PageId> pages);
  Result<std::int64_t> end_write(PageId page) { return end_write(std::span(&page, 1)); }

  const PoolShape& shape() const { return shape_; }
  std::int64_t total() const { return shape_.pages; }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t used() const { return total() - free(); }
  /// Owners or writers of a page; 0 for a page that the pool does not have.
  std::int32_t owners(PageId page) const { return shape_.holds(page) ? at(page).owners : 0; }
  std::int32_t writers(PageId page) const { return shape_.holds(page) ? at(page).writers : 0; }
  bool is_free(PageId page) const {
    return shape_.holds(page) && owners(page) == 0 && writers(page) == 0;
  }

 private:
  struct Page {
    std::int32_t owners = 0;
    std::int32_t writers = 0;
  };
  Page& at(PageId page) { return pages_[static_cast<std::size_t>(page.value)]; }
  const Page& at(PageId page) const { return pages_[static_cast<std::size_t>(page.value)]; }
  Result<void> add(std::span<const PageId> pages, std::int32_t Page::*count);
  Result<std::int64_t> drop(std::span<const PageId> pages, std::int32_t Page::*count);

  PoolShape shape_;
  std::vector<Page> pages_;         // [pages]
  std::vector<std::int32_t> free_;  // min-heap of page numbers
};

}  // namespace lathe
