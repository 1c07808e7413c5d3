// KvCache: the pools of a model's layer groups, and the buffers that their routes need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "layout/codec/value_tally.h"
#include "layout/pages/pool_group.h"
#include "layout/pages/state_pool.h"
#include "layout/rope/rope.h"
#include "plan/model_plan.h"
#include "step/attend_op.h"
#include "step/step.h"

namespace lathe {

class KvCache {
 public:
  /// Allocates in the backend's memory: for every layer group its state and the pools of its
  /// caches, which share page numbers and have sizes[group] pages; and the gather workspace of the
  /// plan's budget. Compressed entries and their index keys outlive the window, so they have pages
  /// of their own: their sizes follow the groups', one for each group that has entries. The plan
  /// must outlive the cache. Errors: Pool::create()'s; a wrong number of sizes.
  static Result<KvCache> create(const ModelPlan& plan, std::span<const PoolSize> sizes,
                                const Memory& memory = kHostMemory);
  static Result<KvCache> create(const ModelPlan& plan, PoolSize size,
                                const Memory& memory = kHostMemory) {
    return create(plan, std::span(&size, 1), memory);
  }

  const ModelPlan& plan() const { return *plan_; }
  const Plan& plan(std::size_t group) const { return plan_->groups[group].plan; }
  std::size_t groups() const { return groups_.size(); }
  PoolGroup& pools(std::size_t group = 0) { return groups_[group].pools; }
  const PoolGroup& pools(std::size_t group = 0) const { return groups_[group].pools; }
  PageLedger& ledger(std::size_t group = 0) { return groups_[group].pools.ledger(); }
  /// Pools of a group's compressed entries and their index keys; nullptr if it has none.
  PoolGroup* entries(std::size_t group) {
    return groups_[group].entries ? &*groups_[group].entries : nullptr;
  }
  std::int32_t page_size(std::size_t group = 0) const { return plan(group).main().page_size; }
  /// nullptr for a group without a state.
  StatePool* state(std::size_t group) {
    return groups_[group].state ? &*groups_[group].state : nullptr;
  }
  /// Tokens that fit in the pages, over all requests. Groups with a window count only if all groups
  /// have one.
  std::int64_t tokens() const;
  /// Positions that a request can have: the plan's context, or the tokens that the pages hold if
  /// those are fewer. Windows alone hold any number of tokens.
  std::int64_t positions() const;
  /// Fills every unheld page and slot with 0xff (Pool::poison_free()).
  void poison_free();
  /// Bytes of all pools and states.
  std::int64_t bytes() const;

  /// The pages of one layer of the model, which has keys. Precondition of index(): the layer has an
  /// index cache.
  PoolView main(std::int32_t layer) {
    return group_of(layer).pools.pool(0).view(place_of(layer).layer);
  }
  PoolView index(std::int32_t layer) {
    Group& group = group_of(layer);
    PoolGroup& pools = group.entries ? *group.entries : group.pools;
    return pools.pool(group.index_pool).view(place_of(layer).index_layer);
  }
  /// Precondition: the layer has compressed entries.
  PoolView compressed(std::int32_t layer) {
    return group_of(layer).entries->pool(0).view(place_of(layer).layer);
  }
  /// The pools of both sources of attention.
  KeyPools keys(std::int32_t layer) {
    KeyPools out{main(layer)};
    if (group_of(layer).entries) out.compressed = compressed(layer);
    return out;
  }
  /// Precondition: the layer has a state.
  StateView state_of(std::int32_t layer) {
    const Place& place = place_of(layer);
    return group_of(layer).state->view(place.state_layer).from(place.state_offset);
  }
  /// Scales of a layer's main pool, for per-tensor layouts; 1 until set.
  TensorScales scales(std::int32_t layer) const {
    return scales_.empty() ? TensorScales{} : scales_[static_cast<std::size_t>(layer)];
  }
  /// One per layer of the model, each in [2^-126, 2^126].
  void set_scales(std::vector<TensorScales> scales);
  /// Starts counting what is written to every layer's main pool.
  void count_values();
  /// Null unless counting.
  ValueTally* tally(std::int32_t layer) { return tallies_ ? tallies_.get() + layer : nullptr; }
  /// Shape of the pool that an indexer's slots refer to.
  PoolShape chosen_shape(std::int32_t layer) {
    Group& group = group_of(layer);
    return (group.entries ? *group.entries : group.pools).pool(0).shape();
  }
  std::span<std::byte> gather_workspace() { return {gather_.get(), gather_bytes_}; }

 private:
  // Tokens in pages that are kept for a request's whole life; INT64_MAX: all layers have windows.
  std::int64_t growing_tokens() const;
  struct Group {
    PoolGroup pools;
    int index_pool = 0;  // in the entries' group if there is one
    std::optional<PoolGroup> entries;
    std::optional<StatePool> state;
  };
  struct Place {
    std::size_t group = 0;
    std::int32_t layer = 0;         // among the group's layers, or its delta-rule layers
    std::int32_t index_layer = 0;   // among its layers with an index cache; -1: has none
    std::int32_t state_layer = 0;   // among the group's layers with a state; -1: has none
    std::int64_t state_offset = 0;  // bytes from the layer's state to this one's
  };
  explicit KvCache(const ModelPlan& plan) : plan_(&plan) {}
  Result<void> add_group(const GroupPlan& group, PoolSize size, PoolSize entries,
                         const Memory& memory);
  const Place& place_of(std::int32_t layer) const {
    return places_[static_cast<std::size_t>(layer)];
  }
  Group& group_of(std::int32_t layer) { return groups_[place_of(layer).group]; }

  const ModelPlan* plan_;
  std::vector<Group> groups_;
  std::vector<Place> places_;              // [layers]
  std::vector<TensorScales> scales_;       // [layers], or empty
  std::unique_ptr<ValueTally[]> tallies_;  // [layers], or null
  OwnedBytes gather_{nullptr, [](std::byte*) {}};
  std::size_t gather_bytes_ = 0;
};

}  // namespace lathe
