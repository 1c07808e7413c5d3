// Page tables: the page lists of a batch's requests as a dense int32 table that a kernel reads.
//
// Invariant: every entry of a table is a page of the pool or -1; nothing of an earlier build
// survives, so a kernel that reads whole rows in blocks never sees another request's page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// Index of the first of `pages` that is neither a page of the pool nor, with `holes`, -1; their
/// number if there is none. Quick where there is none, as a step's lists are long.
std::size_t first_stray(std::span<const PageId> pages, PoolShape pool, bool holes);

/// A non-owning view of several requests' pages: one span per request, or CSR.
class PageLists {
 public:
  using List = std::span<const PageId>;

  explicit PageLists(std::span<const List> lists) : lists_(lists) {}
  /// Request r has pages[indptr[r], indptr[r + 1]). indptr: [requests + 1], counted in pages.
  /// Errors: an empty indptr, a first entry other than 0, a decreasing one, one past the pages.
  static Result<PageLists> csr(std::span<const std::int64_t> indptr, List pages);

  std::int64_t requests() const {
    return static_cast<std::int64_t>(indptr_.empty() ? lists_.size() : indptr_.size() - 1);
  }
  /// Precondition: 0 <= request < requests().
  List operator[](std::int64_t request) const {
    const auto r = static_cast<std::size_t>(request);
    if (indptr_.empty()) return lists_[r];
    return pages_.subspan(static_cast<std::size_t>(indptr_[r]),
                          static_cast<std::size_t>(indptr_[r + 1] - indptr_[r]));
  }

 private:
  PageLists(std::span<const std::int64_t> indptr, List pages) : indptr_(indptr), pages_(pages) {}
  std::span<const List> lists_;
  std::span<const std::int64_t> indptr_;  // empty: lists_ is used
  List pages_;
};

template <class Index>
struct IndexTableView {
  const Index* data = nullptr;  // [requests, width], null only where that is empty
  std::int64_t requests = 0;
  std::int64_t width = 0;

  std::span<const Index> row(std::int64_t r) const {
    return {data + r * width, static_cast<std::size_t>(width)};
  }
  Index at(std::int64_t r, std::int64_t column) const { return data[r * width + column]; }
};

template <class Index>
struct IndexTable {
  std::vector<Index> entries;  // [requests, width]
  std::int64_t requests = 0;
  std::int64_t width = 0;

  IndexTableView<Index> view() const { return {entries.data(), requests, width}; }
};

using PageTable = IndexTable<PageId>;
using PageTableView = IndexTableView<PageId>;

/// The shape of a table beyond what its requests ask for. A captured graph keeps the strides and
/// row count it was captured with, so a table that it reads fixes both.
struct TableOptions {
  std::int64_t multiple = 1;  // the width is a multiple of this many columns
  std::int64_t width = 0;     // columns; 0: as the longest row needs, rounded up
  std::int64_t requests = 0;  // rows, those past the given requests being all -1; 0: as given
};

/// Columns that a page table's width has to be a multiple of, so that kernels which read
/// tokens_per_read[i] tokens at a time (128, 4096, ...) end their last read inside the row:
/// lcm(tokens_per_read..., page_size) / page_size. 1 where nothing is asked.
/// Errors: a page size or a read outside 1 to 65536, an lcm of more than kMaxSlots tokens.
Result<std::int64_t> table_multiple(std::int32_t page_size,
                                    std::span<const std::int64_t> tokens_per_read);

/// The table [requests, width] of the lists; holes (-1) stay holes.
/// Errors: a page that is neither -1 nor in the pool, named by request and index; options that are
/// negative, contradict each other or are smaller than the lists.
Result<PageTable> page_table(const PageLists& lists, PoolShape pool, TableOptions options = {});

/// The same table, written to the front of a buffer of fixed address: equal to a fresh build
/// whatever the buffer held. What lies past the table is left alone. The lists must not lie in the
/// buffer. Costs requests x width writes. Errors: as page_table(), and a buffer that is too small
/// (code exhausted, needed and available entries named); the buffer is then unchanged.
Result<PageTableView> rebuild_page_table(const PageLists& lists, PoolShape pool,
                                         TableOptions options, std::span<PageId> buffer);

/// rebuild_page_table() of lists whose pages are known to be -1 or in the pool, so that a step
/// looks at each once. Errors: those of options and the buffer.
Result<PageTableView> fill_page_table(const PageLists& lists, TableOptions options,
                                      std::span<PageId> buffer);

/// Rows and columns of a table whose longest row has `longest` entries. Errors: as page_table()
/// gives for options.
struct TableShape {
  std::int64_t requests = 0;
  std::int64_t width = 0;
};
Result<TableShape> table_shape(std::int64_t requests, std::int64_t longest, TableOptions options);

}  // namespace lathe
