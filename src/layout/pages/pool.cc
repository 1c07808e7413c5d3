#include "layout/pages/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace lathe {
namespace {

Error bad_size(std::string field, std::string wanted, std::int64_t offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted),
          fmt::format("{}", offered), std::move(hint)};
}

}  // namespace

Result<std::int64_t> pool_pages(std::span<const PoolPart> parts, PoolSize size) {
  if (parts.empty()) {
    return Error{ErrorCode::invalid_argument, "parts", "at least one layout", "none", ""};
  }
  std::int64_t per_page = 0;
  std::int32_t widest = 1;
  for (const PoolPart& part : parts) {
    if (auto ok = check_page_size(part.page_size); !ok) return ok.error();
    if (part.layers < 1 || part.layers > kMaxPoolLayers) {
      return bad_size("layers", fmt::format("1 to {}", kMaxPoolLayers), part.layers);
    }
    per_page += part.bytes_per_page();
    widest = std::max(widest, part.page_size);
  }
  if (size.budget_bytes < 0) return bad_size("budget_bytes", "0 or more", size.budget_bytes);
  if (size.pages < 0) return bad_size("pages", "0 or more", size.pages);
  if ((size.budget_bytes == 0) == (size.pages == 0)) {
    return Error{ErrorCode::invalid_argument, "budget_bytes, pages", "one of the two",
                 size.pages == 0 ? "none" : "both",
                 fmt::format("one page needs {} bytes", per_page)};
  }
  // On real machines the number of slots is the tighter limit. The other one keeps byte counts
  // below 2^63.
  const std::int64_t most =
      std::min(kMaxSlots / widest, std::numeric_limits<std::int64_t>::max() / per_page);
  if (size.pages != 0) {
    if (size.pages <= most) return size.pages;
    return bad_size("pages", fmt::format("1 to {} (slots are 32 bits wide)", most), size.pages);
  }
  const std::int64_t pages = size.budget_bytes / per_page;
  if (pages == 0) {
    return bad_size("budget_bytes",
                    fmt::format("at least {} bytes, which one page needs", per_page),
                    size.budget_bytes, "raise the budget or make pages smaller");
  }
  if (pages > most) {
    return bad_size("budget_bytes",
                    fmt::format("room for at most {} pages (slots are 32 bits wide)", most),
                    size.budget_bytes, fmt::format("give at most {} bytes", most * per_page));
  }
  return pages;
}

Result<Pool> Pool::create(const PoolSpec& spec, const Memory& memory) {
  const PoolPart part{spec.layout, spec.page_size, spec.layers};
  const auto pages = pool_pages({&part, 1}, {spec.budget_bytes, spec.pages});
  if (!pages) return pages.error();
  return create_over(part, std::make_shared<PageLedger>(PoolShape{spec.page_size, *pages}), memory);
}

Result<Pool> Pool::create_over(const PoolPart& part, std::shared_ptr<PageLedger> ledger,
                               const Memory& memory) {
  auto bytes = memory.allocate(ledger->total() * part.bytes_per_page());
  if (!bytes) return bytes.error();
  return Pool(part, std::move(ledger), std::move(bytes).value());
}

PoolView Pool::view(std::int32_t layer) {
  LATHE_CHECK(layer >= 0 && layer < layers(), "layer of a pool");
  return {bytes_.get() + layer * pages() * page_stride(), part_.layout, part_.page_size, pages()};
}

ConstPoolView Pool::view(std::int32_t layer) const {
  LATHE_CHECK(layer >= 0 && layer < layers(), "layer of a pool");
  return {bytes_.get() + layer * pages() * page_stride(), part_.layout, part_.page_size, pages()};
}

void Pool::poison_free() {
  const auto stride = static_cast<std::size_t>(page_stride());
  for (std::int64_t page = 0; page < pages(); ++page) {
    if (!ledger_->is_free(PageId(static_cast<std::int32_t>(page)))) continue;
    for (std::int32_t layer = 0; layer < layers(); ++layer) {
      std::memset(view(layer).data + page * page_stride(), 0xff, stride);
    }
  }
}

}  // namespace lathe
