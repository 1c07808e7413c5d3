#include "layout/pages/page_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "layout/layout.h"

namespace lathe {
namespace {

Error bad(std::string field, std::string wanted, std::int64_t offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted),
          fmt::format("{}", offered), std::move(hint)};
}

Result<void> check_pages(const PageLists& lists, PoolShape pool) {
  if (auto ok = check_pool_shape(pool); !ok) return ok.error();
  for (std::int64_t r = 0; r < lists.requests(); ++r) {
    const PageLists::List row = lists[r];
    const std::size_t stray = first_stray(row, pool, true);
    if (stray == row.size()) continue;
    return Error{ErrorCode::out_of_range, fmt::format("pages of request {}, index {}", r, stray),
                 fmt::format("-1 or a page from 0 to {}", pool.pages - 1),
                 fmt::format("{}", row[stray].value), ""};
  }
  return {};
}

Result<TableShape> shape_of(const PageLists& lists, TableOptions options) {
  std::size_t longest = 0;
  for (std::int64_t r = 0; r < lists.requests(); ++r) longest = std::max(longest, lists[r].size());
  return table_shape(lists.requests(), static_cast<std::int64_t>(longest), options);
}

void fill(const PageLists& lists, TableShape shape, PageId* out) {
  for (std::int64_t r = 0; r < shape.requests; ++r, out += shape.width) {
    PageId* tail = out;
    if (r < lists.requests()) {
      const PageLists::List row = lists[r];
      tail = std::copy(row.begin(), row.end(), out);
    }
    std::fill(tail, out + shape.width, PageId());
  }
}

}  // namespace

std::size_t first_stray(std::span<const PageId> pages, PoolShape pool, bool holes) {
  const std::int32_t least = holes ? -1 : 0;
  const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(pool.pages, INT32_MAX));
  std::int32_t strays = 0;  // no branch in the loop, so the compiler can vectorise it
  for (std::size_t i = 0; i < pages.size(); ++i) {
    strays |= pages[i].value < least || pages[i].value >= count ? 1 : 0;
  }
  if (strays == 0) return pages.size();
  return static_cast<std::size_t>(
      std::ranges::find_if(pages,
                           [&](PageId page) { return page.value < least || page.value >= count; }) -
      pages.begin());
}

Result<PageLists> PageLists::csr(std::span<const std::int64_t> indptr, List pages) {
  if (indptr.empty()) {
    return Error{ErrorCode::invalid_argument, "indptr", "requests + 1 entries", "none",
                 "no requests: {0}"};
  }
  if (indptr[0] != 0) return bad("indptr[0]", "0", indptr[0]);
  for (std::size_t r = 1; r < indptr.size(); ++r) {
    if (indptr[r] < indptr[r - 1] || indptr[r] > static_cast<std::int64_t>(pages.size())) {
      return bad(fmt::format("indptr[{}]", r),
                 fmt::format("{} to {} (the pages given)", indptr[r - 1], pages.size()), indptr[r]);
    }
  }
  return PageLists(indptr, pages);
}

Result<std::int64_t> table_multiple(std::int32_t page_size,
                                    std::span<const std::int64_t> tokens_per_read) {
  if (auto ok = check_page_size(page_size); !ok) return ok.error();
  std::int64_t tokens = page_size;
  for (std::size_t i = 0; i < tokens_per_read.size(); ++i) {
    const std::int64_t read = tokens_per_read[i];
    if (read < 1 || read > kMaxPageSize) {
      return bad(fmt::format("tokens_per_read[{}]", i), fmt::format("1 to {}", kMaxPageSize), read);
    }
    tokens = std::lcm(tokens, read);
    if (tokens > kMaxSlots) {
      return bad(fmt::format("tokens_per_read[{}]", i),
                 fmt::format("reads whose least common multiple with page_size {} is at most {}",
                             page_size, kMaxSlots),
                 tokens, "choose a power of two as page_size");
    }
  }
  return tokens / page_size;
}

Result<TableShape> table_shape(std::int64_t requests, std::int64_t longest, TableOptions options) {
  if (options.multiple < 1 || options.multiple > kMaxSlots) {
    return bad("multiple", fmt::format("1 to {}", kMaxSlots), options.multiple);
  }
  if (options.width < 0 || options.width > kMaxSlots) {
    return bad("width", fmt::format("0 to {}", kMaxSlots), options.width);
  }
  if (options.width % options.multiple != 0) {
    return bad("width", fmt::format("a multiple of {}", options.multiple), options.width);
  }
  if (options.width != 0 && options.width < longest) {
    return bad("width", fmt::format("at least the {} entries of the longest request", longest),
               options.width, "the table was sized for shorter requests");
  }
  if (options.requests < 0 || options.requests > kMaxSlots) {
    return bad("requests", fmt::format("0 to {}", kMaxSlots), options.requests);
  }
  if (options.requests != 0 && options.requests < requests) {
    return bad("requests", fmt::format("at least the {} requests given", requests),
               options.requests, "the table was sized for a smaller batch");
  }
  const std::int64_t rounded =
      (longest + options.multiple - 1) / options.multiple * options.multiple;
  return TableShape{std::max(requests, options.requests),
                    options.width != 0 ? options.width : rounded};
}

Result<PageTable> page_table(const PageLists& lists, PoolShape pool, TableOptions options) {
  if (auto ok = check_pages(lists, pool); !ok) return ok.error();
  const auto shape = shape_of(lists, options);
  if (!shape) return shape.error();
  PageTable table{std::vector<PageId>(static_cast<std::size_t>(shape->requests * shape->width)),
                  shape->requests, shape->width};
  fill(lists, *shape, table.entries.data());
  return table;
}

Result<PageTableView> rebuild_page_table(const PageLists& lists, PoolShape pool,
                                         TableOptions options, std::span<PageId> buffer) {
  if (auto ok = check_pages(lists, pool); !ok) return ok.error();
  return fill_page_table(lists, options, buffer);
}

Result<PageTableView> fill_page_table(const PageLists& lists, TableOptions options,
                                      std::span<PageId> buffer) {
  const auto shape = shape_of(lists, options);
  if (!shape) return shape.error();
  const std::int64_t needed = shape->requests * shape->width;
  if (needed > static_cast<std::int64_t>(buffer.size())) {
    return Error{
        ErrorCode::exhausted, "buffer",
        fmt::format("{} entries ({} requests x {} pages)", needed, shape->requests, shape->width),
        fmt::format("{}", buffer.size()), "size it for the largest batch and context"};
  }
  fill(lists, *shape, buffer.data());
  return PageTableView{buffer.data(), shape->requests, shape->width};
}

}  // namespace lathe
