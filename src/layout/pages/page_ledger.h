// PageLedger: counts the owners of each page of a pool and finds free pages.
//
// Each page has two counts:
//   owners   requests and the prefix cache that use the page; a page can be shared
//   writers  kernels and transfers that are still writing to it
// It is free when both are 0. If the last owner releases a page that is still being written, the
// page becomes free only at end_write(). Otherwise the old write could overwrite the next owner's
// bytes.
//
// Not thread-safe: only the scheduling thread may call it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// An allocation failed because too few pages are free. It took none.
struct PoolExhausted {
  std::int64_t needed = 0;          // pages wanted
  std::int64_t available = 0;       // pages free
  std::int64_t largest_pages = 0;   // most pages of a request in an empty pool
  std::int64_t largest_tokens = 0;  // most tokens of a request in an empty pool

  bool never_fits() const { return needed > largest_pages; }
  Error error() const;
  std::string message() const { return error().message(); }
};

class PageLedger {
 public:
  /// All pages are free. Precondition: check_pool_shape(shape) passes.
  explicit PageLedger(PoolShape shape);

  /// Allocates n pages with one owner each, or none. Returns the n lowest free page numbers in
  /// ascending order, so the result depends only on which pages are free. O(log pages) per page.
  /// Precondition: n >= 0.
  Result<std::vector<PageId>, PoolExhausted> allocate(std::int64_t n);

  /// Adds an owner to each page. A page may be listed several times. Errors, with nothing changed:
  /// an unknown page, a page without an owner.
  Result<void> retain(std::span<const PageId> pages);
  Result<void> retain(PageId page) { return retain(std::span(&page, 1)); }

  /// Removes an owner from each page. Returns how many pages became free. Errors, with nothing
  /// changed: an unknown page, more releases than owners.
  Result<std::int64_t> release(std::span<const PageId> pages);
  Result<std::int64_t> release(PageId page) { return release(std::span(&page, 1)); }

  /// Adds a writer to each page. Errors, with nothing changed: an unknown page, a page without an
  /// owner.
  Result<void> begin_write(std::span<const PageId> pages);
  Result<void> begin_write(PageId page) { return begin_write(std::span(&page, 1)); }

  /// Removes a writer from each page. Returns how many pages became free. Errors, with nothing
  /// changed: an unknown page, more ends than begins.
  Result<std::int64_t> end_write(std::span<const PageId> pages);
  Result<std::int64_t> end_write(PageId page) { return end_write(std::span(&page, 1)); }

  const PoolShape& shape() const { return shape_; }
  std::int64_t total() const { return shape_.pages; }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t used() const { return total() - free(); }
  /// Number of owners or writers of a page; 0 for a page that is not in the pool.
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
  std::vector<std::int32_t> free_;  // min-heap of free page numbers
};

}  // namespace lathe
