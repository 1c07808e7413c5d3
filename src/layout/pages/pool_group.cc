#include "layout/pages/pool_group.h"

#include <fmt/format.h>

#include "layout/pages/copy_records.h"

namespace lathe {
Result<PoolGroup> PoolGroup::create(std::span<const PoolPart> parts, PoolSize size,
                                    const Memory& memory) {
  const auto pages = pool_pages(parts, size);
  if (!pages) return pages.error();
  auto ledger = std::make_shared<PageLedger>(PoolShape{parts.front().page_size, *pages});
  std::vector<Pool> pools;
  for (const PoolPart& part : parts) {
    auto pool = Pool::create_over(part, ledger, memory);
    if (!pool) return pool.error();
    pools.push_back(std::move(pool).value());
  }
  return PoolGroup(std::move(pools));
}

std::int64_t PoolGroup::bytes_per_page() const {
  std::int64_t bytes = 0;
  for (const Pool& pool : pools_) bytes += pool.bytes_per_page();
  return bytes;
}

void PoolGroup::poison_free() {
  for (Pool& pool : pools_) pool.poison_free();
}

Result<void> PoolGroup::copy_tokens(std::span<const Slot> src, std::span<const Slot> dst) {
  for (const Pool& pool : pools_) {
    if (pool.page_size() == pools_.front().page_size()) continue;
    return Error{ErrorCode::unsupported, "copy_tokens", "pools of one page size",
                 fmt::format("{} and {}", pools_.front().page_size(), pool.page_size()),
                 "use copy_pages()"};
  }
  // The pools have equal shapes, so only the first copy can fail.
  for (Pool& pool : pools_) {
    for (std::int32_t layer = 0; layer < pool.layers(); ++layer) {
      const PoolView view = pool.view(layer);
      if (auto ok = copy_slots(view, src, view, dst); !ok) return ok;
    }
  }
  return {};
}

Result<void> PoolGroup::copy_pages(std::span<const PageId> src, std::span<const PageId> dst) {
  for (Pool& pool : pools_) {
    for (std::int32_t layer = 0; layer < pool.layers(); ++layer) {
      const PoolView view = pool.view(layer);
      if (auto ok = lathe::copy_pages(view, src, view, dst); !ok) return ok;
    }
  }
  return {};
}

}  // namespace lathe
