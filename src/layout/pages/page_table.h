// Page tables: the page lists of a batch's requests as a dense int32 table for kernels.
//
// Invariant: every entry is a page of the pool or -1. A table that is built again keeps no old
// entries, so a kernel that reads rows in whole blocks never gets another request's page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_shape.h"

namespace lathe {

/// Index of the first entry that is neither a page of the pool nor, if `holes`, -1. pages.size() if
/// there is none; that case is fast, because a step's lists are long.
std::size_t first_stray(std::span<const PageId> pages, PoolShape pool, bool holes);

/// A view of several requests' pages that does not own them: a span per request, or CSR.
class PageLists {
 public:
  using List = std::span<const PageId>;

  explicit PageLists(std::span<const List> lists) : lists_(lists) {}
  /// Request r has pages [indptr[r], indptr[r + 1]). indptr: [requests + 1], in pages. Errors: an
  /// empty indptr; a first entry other than 0; entries that decrease or exceed the number of pages.
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
  const Index* data = nullptr;  // [requests, width]; null only if that is empty
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

/// The shape of a table, if it must be larger than its requests need. A captured CUDA graph has
/// fixed strides and a fixed row count, so its tables must too.
struct TableOptions {
  std::int64_t multiple = 1;  // the width is a multiple of this many columns
  std::int64_t width = 0;     // columns; 0: of the longest row, rounded up
  std::int64_t requests = 0;  // rows; extra rows are all -1; 0: one per request
};

/// The number of columns of which a page table's width must be a multiple. Kernels read
/// tokens_per_read[i] tokens (128, 4096, ...) at a time, and their last read must end inside the
/// row: lcm(tokens_per_read..., page_size) / page_size. 1 for an empty list. Errors: a page size or
/// a read outside 1 to 65536, an lcm of more than kMaxSlots tokens.
Result<std::int64_t> table_multiple(std::int32_t page_size,
                                    std::span<const std::int64_t> tokens_per_read);

/// The table [requests, width] of the lists. Holes (-1) stay holes. Errors: a page that is neither
/// -1 nor in the pool (names request and index); options that are negative, contradict each other
/// or are too small for the lists.
Result<PageTable> page_table(const PageLists& lists, PoolShape pool, TableOptions options = {});

/// page_table() into the front of a buffer, for a fixed address. The result does not depend on what
/// the buffer held; entries after the table are unchanged. The lists must not be in the buffer.
/// Writes requests x width entries. Errors, with the buffer unchanged: like page_table(); a buffer
/// that is too small (code exhausted, with needed and available entries).
Result<PageTableView> rebuild_page_table(const PageLists& lists, PoolShape pool,
                                         TableOptions options, std::span<PageId> buffer);

/// rebuild_page_table() for lists that are already checked: every page is -1 or in the pool.
/// Errors: options and the buffer, as there.
Result<PageTableView> fill_page_table(const PageLists& lists, TableOptions options,
                                      std::span<PageId> buffer);

/// The shape of a table if its longest row has `longest` entries. Errors: options, like
/// page_table().
struct TableShape {
  std::int64_t requests = 0;
  std::int64_t width = 0;
};
Result<TableShape> table_shape(std::int64_t requests, std::int64_t longest, TableOptions options);

}  // namespace lathe
