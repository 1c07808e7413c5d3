#include "layout/pages/pool_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "layout/pages/copy_order.h"

namespace lathe {
namespace {

template <class Index>
std::vector<std::int32_t> values(std::span<const Index> list) {
  std::vector<std::int32_t> out(list.size());
  std::transform(list.begin(), list.end(), out.begin(), [](Index i) { return i.value; });
  return out;
}

// `size` is the number of slots or pages in the pool, `what` their name in errors.
Result<void> check_copy(std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                        std::int64_t size, std::string_view what) {
  if (src.size() != dst.size()) {
    return Error{ErrorCode::invalid_argument, "dst",
                 fmt::format("{} {}s, as src", src.size(), what), fmt::format("{}", dst.size()),
                 ""};
  }
  for (const auto& [list, name] : {std::pair(src, "src"), std::pair(dst, "dst")}) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i] >= 0 && list[i] < size) continue;
      return Error{ErrorCode::out_of_range, fmt::format("{}[{}]", name, i),
                   fmt::format("a {} from 0 to {}", what, size - 1), fmt::format("{}", list[i]),
                   ""};
    }
  }
  std::unordered_set<std::int32_t> seen;
  seen.reserve(dst.size());
  for (std::size_t i = 0; i < dst.size(); ++i) {
    if (seen.insert(dst[i]).second) continue;
    return Error{ErrorCode::invalid_argument, fmt::format("dst[{}]", i), "every destination once",
                 fmt::format("{} {} again", what, dst[i]), ""};
  }
  return {};
}

// Copies records of `bytes` bytes. at(i) returns the address of record i.
template <class At>
void run_steps(std::span<const CopyStep> steps, std::int64_t bytes, std::byte* scratch, At at) {
  const auto place = [&](std::int32_t i) { return i == kCopyScratch ? scratch : at(i); };
  for (const CopyStep& step : steps) {
    std::memcpy(place(step.to), place(step.from), static_cast<std::size_t>(bytes));
  }
}

}  // namespace

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
  const auto from = values(src), to = values(dst);
  if (auto ok = check_copy(from, to, pools_.front().shape().slots(), "slot"); !ok) return ok;
  const std::vector<CopyStep> steps = copy_order(from, to);
  for (Pool& pool : pools_) {
    const CacheLayout& layout = pool.layout();
    for (int plane = 0; plane < layout.plane_count(); ++plane) {
      const std::int64_t bytes = layout.plane_bytes(plane);
      const std::int64_t start = layout.plane_start(pool.page_size(), plane);
      std::vector<std::byte> scratch(static_cast<std::size_t>(bytes));
      for (std::int32_t layer = 0; layer < pool.layers(); ++layer) {
        const PoolView view = pool.view(layer);
        run_steps(steps, bytes, scratch.data(), [&](std::int32_t i) {
          const Slot slot(i);
          return view.data + page_of(slot, view.page_size).value * view.page_stride + start +
                 offset_in_page(slot, view.page_size) * bytes;
        });
      }
    }
  }
  return {};
}

Result<void> PoolGroup::copy_pages(std::span<const PageId> src, std::span<const PageId> dst) {
  const auto from = values(src), to = values(dst);
  if (auto ok = check_copy(from, to, pages(), "page"); !ok) return ok;
  const std::vector<CopyStep> steps = copy_order(from, to);
  for (Pool& pool : pools_) {
    const std::int64_t stride = pool.page_stride();
    std::vector<std::byte> scratch(static_cast<std::size_t>(stride));
    for (std::int32_t layer = 0; layer < pool.layers(); ++layer) {
      const PoolView view = pool.view(layer);
      run_steps(steps, stride, scratch.data(),
                [&](std::int32_t page) { return view.data + page * stride; });
    }
  }
  return {};
}

}  // namespace lathe
