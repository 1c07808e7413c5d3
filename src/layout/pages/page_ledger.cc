#include "layout/pages/page_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace lathe {
namespace {

Error unknown_page(std::size_t i, PageId page, const PoolShape& shape) {
  return {ErrorCode::out_of_range, fmt::format("pages[{}]", i),
          fmt::format("a page from 0 to {}", shape.pages - 1), fmt::format("{}", page.value),
          page.is_hole() ? "-1 is a hole, which has no owner" : ""};
}

}  // namespace

Error PoolExhausted::error() const {
  std::string hint = fmt::format("a request may hold at most {} pages ({} tokens) of this pool; ",
                                 largest_pages, largest_tokens);
  hint += never_fits() ? "shorten the request or give the pool a larger budget"
                       : fmt::format("release or evict {} pages", needed - available);
  return {ErrorCode::exhausted, "pages", fmt::format("{} free pages", needed),
          fmt::format("{}", available), std::move(hint)};
}

PageLedger::PageLedger(PoolShape shape) : shape_(shape) {
  LATHE_CHECK(check_pool_shape(shape), "shape of a PageLedger");
  pages_.resize(static_cast<std::size_t>(shape.pages));
  free_.resize(pages_.size());
  std::iota(free_.begin(), free_.end(), 0);  // ascending order is already a heap
}

Result<std::vector<PageId>, PoolExhausted> PageLedger::allocate(std::int64_t n) {
  LATHE_CHECK(n >= 0, "a negative number of pages");
  if (n > free()) return PoolExhausted{n, free(), total(), shape_.slots()};
  std::vector<PageId> out;
  out.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    out.emplace_back(free_.back());
    free_.pop_back();
    at(out.back()).owners = 1;
  }
  return out;
}

// Owners and writers may be added only to a page that has an owner. Without one it is free, or will
// be when its writers end.
Result<void> PageLedger::add(std::span<const PageId> pages, std::int32_t Page::*count) {
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!shape_.holds(pages[i])) return unknown_page(i, pages[i], shape_);
    if (at(pages[i]).owners == 0) {
      return Error{ErrorCode::invalid_argument, fmt::format("pages[{}]", i), "a page with an owner",
                   fmt::format("page {}, which has no owner", pages[i].value),
                   "allocate() hands pages out"};
    }
  }
  for (PageId page : pages) ++(at(page).*count);
  return {};
}

Result<std::int64_t> PageLedger::drop(std::span<const PageId> pages, std::int32_t Page::*count) {
  // Decrementing one by one finds a page that is listed more often than it is held. On an error the
  // counts are restored.
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const bool known = shape_.holds(pages[i]);
    if (known && at(pages[i]).*count > 0) {
      --(at(pages[i]).*count);
      continue;
    }
    for (std::size_t j = 0; j < i; ++j) ++(at(pages[j]).*count);
    if (!known) return unknown_page(i, pages[i], shape_);
    const bool owner = count == &Page::owners;
    return Error{ErrorCode::invalid_argument, fmt::format("pages[{}]", i),
                 owner ? "a page with an owner left" : "a page with a writer left",
                 fmt::format("page {}, which has {} in all", pages[i].value, at(pages[i]).*count),
                 owner ? "every owner releases once" : "every begin_write() ends once"};
  }
  std::int64_t freed = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!is_free(pages[i])) continue;
    // A page that is listed twice must enter the heap once: owners = -1 marks it as done.
    at(pages[i]).owners = -1;
    free_.push_back(pages[i].value);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
    ++freed;
  }
  for (PageId page : pages) at(page).owners = std::max(at(page).owners, 0);
  return freed;
}

Result<void> PageLedger::retain(std::span<const PageId> pages) { return add(pages, &Page::owners); }

Result<std::int64_t> PageLedger::release(std::span<const PageId> pages) {
  return drop(pages, &Page::owners);
}

Result<void> PageLedger::begin_write(std::span<const PageId> pages) {
  return add(pages, &Page::writers);
}

Result<std::int64_t> PageLedger::end_write(std::span<const PageId> pages) {
  return drop(pages, &Page::writers);
}

}  // namespace lathe
