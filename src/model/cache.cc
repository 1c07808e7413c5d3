#include "model/cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "plan/budget.h"

namespace lathe {

Result<void> KvCache::add_group(const GroupPlan& group, PoolSize size, PoolSize entries_size,
                                const Memory& memory) {
  const bool two = group.plan.problem.two_sources();
  std::vector<PoolPart> window, entries;  // with one source all parts are in `window`
  int index_pool = 0;
  for (const CachePlan& c : group.plan.caches) {
    std::vector<PoolPart>& parts = two && c.role != CacheRole::main ? entries : window;
    if (c.role == CacheRole::index) index_pool = static_cast<int>(parts.size());
    parts.push_back({c.layout, c.page_size, group.plan.layers_of(c.role)});
  }
  auto pools = PoolGroup::create(window, size, memory);
  if (!pools) return pools.error();
  groups_.push_back({std::move(*pools), index_pool, std::nullopt, std::nullopt});
  if (two) {
    auto more = PoolGroup::create(entries, entries_size, memory);
    if (!more) return more.error();
    groups_.back().entries.emplace(std::move(*more));
  }
  if (group.group.state_bytes == 0) return {};
  const auto layers = static_cast<std::int32_t>(group.group.state_layers().size());
  auto state = StatePool::create(group.group.state_bytes, plan_->state_banks(), layers,
                                 plan_->block_tokens, plan_->state_slots, memory);
  if (!state) return state.error();
  groups_.back().state.emplace(std::move(*state));
  return {};
}

Result<KvCache> KvCache::create(const ModelPlan& plan, std::span<const PoolSize> sizes,
                                const Memory& memory) {
  const std::size_t wanted = plan.groups.size() + plan.entry_groups();
  if (sizes.size() != wanted) {
    return Error{
        ErrorCode::invalid_argument, "sizes",
        fmt::format("{}, one per layer group and one per group with compressed entries", wanted),
        fmt::format("{}", sizes.size()), ""};
  }
  std::size_t next_entries = plan.groups.size();
  KvCache cache(plan);
  cache.places_.resize(static_cast<std::size_t>(plan.layers()));
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const bool two = plan.groups[g].plan.problem.two_sources();
    const PoolSize entries = two ? sizes[next_entries++] : PoolSize();
    if (auto ok = cache.add_group(plan.groups[g], sizes[g], entries, memory); !ok) {
      return ok.error();
    }
    const LayerGroup& group = plan.groups[g].group;
    const std::span<const std::int32_t> indexed =
        group.index_layers.empty() ? group.layers : group.index_layers;
    std::int32_t at = 0;
    std::int32_t index_at = 0;
    const std::int64_t before = group.delta ? delta_state_bytes(group.delta->problem) : 0;
    for (const std::int32_t layer : group.layers) {
      LATHE_CHECK(layer >= 0 && layer < plan.layers(), "layer groups hold every layer once");
      const bool has_index = std::binary_search(indexed.begin(), indexed.end(), layer);
      Place& place = cache.places_[static_cast<std::size_t>(layer)];
      place = {g, at, has_index ? index_at++ : -1, at, before};
      if (group.delta) place.state_layer = place.index_layer;
      ++at;
    }
    for (const std::int32_t layer : group.readers) {
      LATHE_CHECK(layer >= 0 && layer < plan.layers(), "layer groups hold every layer once");
      cache.places_[static_cast<std::size_t>(layer)] =
          cache.places_[static_cast<std::size_t>(group.layers.back())];
    }
    if (!group.delta) continue;
    at = 0;
    for (const std::int32_t layer : group.delta->layers) {
      LATHE_CHECK(layer >= 0 && layer < plan.layers(), "layer groups hold every layer once");
      cache.places_[static_cast<std::size_t>(layer)] = {g, at, -1, at, 0};
      ++at;
    }
  }
  if (const Budget* gather = plan.budget(BudgetKind::gather)) {
    auto bytes = memory.allocate(gather->bytes);
    if (!bytes) return bytes.error();
    cache.gather_ = std::move(*bytes);
    cache.gather_bytes_ = static_cast<std::size_t>(gather->bytes);
  }
  return cache;
}

std::int64_t KvCache::growing_tokens() const {
  std::int64_t out = INT64_MAX;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (kept_tokens(plan(g).problem) == 0) out = std::min(out, pools(g).pages() * page_size(g));
    if (const auto& entries = groups_[g].entries) {
      out = std::min(out, entries->pages() * entry_page_tokens(plan(g)));
    }
  }
  return out;
}

std::int64_t KvCache::tokens() const {
  const std::int64_t growing = growing_tokens();
  if (growing < INT64_MAX) return growing;
  std::int64_t all = INT64_MAX;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    all = std::min(all, pools(g).pages() * page_size(g));
  }
  return all;
}

std::int64_t KvCache::positions() const {
  return std::min(plan_->context_length(), growing_tokens());
}

void KvCache::set_scales(std::vector<TensorScales> scales) {
  LATHE_CHECK(scales.size() == places_.size(), "one scale per layer");
  scales_ = std::move(scales);
}

void KvCache::count_values() { tallies_ = std::make_unique<ValueTally[]>(places_.size()); }

void KvCache::poison_free() {
  for (Group& g : groups_) {
    g.pools.poison_free();
    if (g.entries) g.entries->poison_free();
    if (g.state) g.state->poison_free();
  }
}

std::int64_t KvCache::bytes() const {
  std::int64_t sum = 0;
  for (const Group& g : groups_) {
    sum += g.pools.bytes();
    if (g.entries) sum += g.entries->bytes();
    if (g.state) sum += g.state->bytes();
  }
  return sum;
}

}  // namespace lathe
