// KvCache: the pools of a plan, and what its routes need beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "attn/plan.h"
#include "attn/registry.h"
#include "attn/step.h"
#include "base/result.h"
#include "layout/pool_group.h"
#include "layout/rope.h"

namespace lathe {

class KvCache {
 public:
  /// Pools for every cache of the plan, over one page numbering, and the gather workspace that the
  /// plan's budget names. The plan and the registry must outlive it. Errors: as Pool::create().
  static Result<KvCache> create(const Plan& plan, const Registry& registry, PoolSize size);

  const Plan& plan() const { return *plan_; }
  const Registry& registry() const { return *registry_; }
  PoolGroup& pools() { return pools_; }
  const PoolGroup& pools() const { return pools_; }
  PageLedger& ledger() { return pools_.ledger(); }
  std::int32_t page_size() const { return plan_->main().page_size; }
  /// Tokens that all pages together hold.
  std::int64_t tokens() const { return pools_.pages() * page_size(); }

  /// Pages of one layer. Precondition of index(): the plan has an index cache.
  PoolView main(std::int32_t layer) { return pools_.pool(0).view(layer); }
  PoolView index(std::int32_t layer) { return pools_.pool(index_pool_).view(layer); }
  bool has_index() const { return index_pool_ > 0; }
  std::span<std::byte> gather_workspace() { return {gather_.get(), gather_bytes_}; }

 private:
  KvCache(const Plan& plan, const Registry& registry, PoolGroup pools)
      : plan_(&plan), registry_(&registry), pools_(std::move(pools)) {}
  const Plan* plan_;
  const Registry* registry_;
  PoolGroup pools_;
  int index_pool_ = 0;
  PoolBytes gather_{nullptr, [](std::byte*) {}};
  std::size_t gather_bytes_ = 0;
};

}  // namespace lathe
