#include "engine/runner/cached_copies.h"

#include <algorithm>

namespace lathe {
namespace {

// prepare_list() has lists of numbers.
std::span<const Slot> as_slots(std::span<const std::int32_t> list) {
  return {reinterpret_cast<const Slot*>(list.data()), list.size()};
}

}  // namespace

Result<void> CachedCopies::run(std::span<const BatchItem> items,
                               std::span<const std::size_t> groups, KvCache& cache,
                               const OpsContext& ops) {
  const auto copies = [](const BatchItem& item) { return item.copied > 0; };
  if (std::ranges::none_of(items, copies)) return {};
  from_.resize(cache.groups());
  to_.resize(cache.groups());
  for (const std::size_t g : groups) {
    const std::int32_t size = cache.page_size(g);
    from_[g].clear();
    to_[g].clear();
    for (const BatchItem& item : items) {
      if (item.copied == 0) continue;
      const PageId page = item.pages[g][static_cast<std::size_t>(item.cached / size)];
      for (std::int32_t i = 0; i < item.cached % size; ++i) {
        from_[g].push_back(slot_of(item.copied_from[g], size, i).value);
        to_[g].push_back(slot_of(page, size, i).value);
      }
    }
    if (auto ok = run_group(g, cache, ops); !ok) return ok;
  }
  return {};
}

Result<void> CachedCopies::run_group(std::size_t group, KvCache& cache, const OpsContext& ops) {
  const auto from = ops.backend->prepare_list(ops, from_[group]);
  if (!from) return from.error();
  const auto to = ops.backend->prepare_list(ops, to_[group]);
  if (!to) return to.error();
  PoolGroup& pools = cache.pools(group);
  for (int i = 0; i < pools.pool_count(); ++i) {
    Pool& pool = pools.pool(i);
    for (std::int32_t layer = 0; layer < pool.layers(); ++layer) {
      const auto ok =
          ops.backend->copy_tokens(ops, as_slots(*from), as_slots(*to), pool.view(layer));
      if (!ok) return ok;
    }
  }
  return {};
}

}  // namespace lathe
