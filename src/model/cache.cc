#include "model/cache.h"

namespace lathe {

Result<KvCache> KvCache::create(const Plan& plan, const Registry& registry, PoolSize size) {
  std::vector<PoolPart> parts;
  int index_pool = 0;
  for (const CachePlan& c : plan.caches) {
    if (c.role == CacheRole::compressed) {
      return Error{ErrorCode::unsupported, "cache", "pools over one page numbering",
                   "a compressed pool, whose pages come and go on their own", ""};
    }
    if (c.role == CacheRole::index) index_pool = static_cast<int>(parts.size());
    parts.push_back({c.layout, c.page_size, plan.layers});
  }
  auto pools = PoolGroup::create(parts, size);
  if (!pools) return pools.error();
  KvCache cache(plan, registry, std::move(*pools));
  cache.index_pool_ = index_pool;
  if (const Budget* gather = plan.budget(BudgetKind::gather)) {
    auto bytes = allocate_host_pool(gather->bytes);
    if (!bytes) return bytes.error();
    cache.gather_ = std::move(*bytes);
    cache.gather_bytes_ = static_cast<std::size_t>(gather->bytes);
  }
  return cache;
}

}  // namespace lathe
