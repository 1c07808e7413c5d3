// The memory of a model's run, planned before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/machine.h"
#include "layout/pages/pool_group.h"
#include "plan/model_plan.h"
#include "plan/plan_request.h"

namespace lathe {

/// Memory of a separate draft model. Its pools hold as many tokens as the model's.
struct DraftMemory {
  const ModelPlan* plan = nullptr;  // null: no draft model
  std::int64_t weight_bytes = 0;

  /// Bytes of the draft model's own buffers, plus what it adds to the shared ones (the two models
  /// never run at once). The reserve is the model's. `model` null: not planned yet; counts all
  /// buffers.
  std::int64_t buffer_bytes(const ModelPlan* model = nullptr) const;
  /// Bytes of the draft model's pages for `tokens` tokens.
  double pool_bytes(std::int64_t tokens) const;
};

/// The machine with the memory that a draft model leaves, with pages for request.max_total_tokens
/// (0: for one block).
Machine beside_draft(Machine machine, const DraftMemory& draft, const PlanRequest& request);

/// Tokens that the cache holds: request.max_total_tokens, or if that is 0 as many whole blocks as
/// fit next to weights and buffers, at most what all running requests can hold.
std::int64_t cache_tokens(const ModelPlan& plan, const PlanRequest& request, const Machine& machine,
                          std::int64_t weight_bytes, const DraftMemory& draft = {});

/// Pool sizes for KvCache::create(): pages for `tokens` tokens.
std::vector<PoolSize> pool_sizes(const ModelPlan& plan, std::int64_t tokens);
/// Bytes of all groups' pages for `tokens` tokens.
double pool_bytes(const ModelPlan& plan, std::int64_t tokens);

/// Bytes of a step in the arena of tensors: activations, the keys that indexers choose, and on a
/// GPU the scratch of experts, indexers and the sampler.
std::int64_t tensor_bytes(const ModelPlan& plan);

/// Budgets for Backend::reserve(): of each kind the larger one of both plans, because a draft model
/// (null: none) never runs at the same time as the model.
std::vector<Budget> shared_budgets(const ModelPlan& plan, const ModelPlan* draft);

/// A line with bytes for each item: weights, cache, the plan's budgets, the draft model's memory,
/// the sum, and the machine's memory.
std::string memory_table(const ModelPlan& plan, const Machine& machine, std::int64_t weight_bytes,
                         std::int64_t cache_tokens, const DraftMemory& draft = {});

}  // namespace lathe
