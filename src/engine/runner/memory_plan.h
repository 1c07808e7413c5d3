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

/// What a draft model takes of the memory, whose pools hold as many tokens as the model's.
struct DraftMemory {
  const ModelPlan* plan = nullptr;  // null: there is none
  std::int64_t weight_bytes = 0;

  /// Of its buffers: those of its own, and what it needs more of those that both share, as one
  /// computes while the other does not. model: null as long as it is not planned, which counts all.
  /// The reserve is the model's.
  std::int64_t buffer_bytes(const ModelPlan* model = nullptr) const;
  /// Of its pages for so many tokens.
  double pool_bytes(std::int64_t tokens) const;
};

/// What a draft model leaves of the machine's memory, beside pages for request.max_total_tokens, or
/// for a block where that is 0.
Machine beside_draft(Machine machine, const DraftMemory& draft, const PlanRequest& request);

/// Tokens that the cache holds: request.max_total_tokens, or what fits beside weights and buffers,
/// a whole number of blocks, and no more than all running requests can hold.
std::int64_t cache_tokens(const ModelPlan& plan, const PlanRequest& request, const Machine& machine,
                          std::int64_t weight_bytes, const DraftMemory& draft = {});

/// What KvCache::create() takes, for so many tokens.
std::vector<PoolSize> pool_sizes(const ModelPlan& plan, std::int64_t tokens);
/// Bytes of all groups' pages for so many tokens.
double pool_bytes(const ModelPlan& plan, std::int64_t tokens);

/// What a step takes of the arena of tensors: activations, the keys that indexers choose, and on a
/// GPU what experts, indexers and draws work in.
std::int64_t tensor_bytes(const ModelPlan& plan);

/// What Backend::reserve() is to take: of each kind what the larger of both plans has, as a draft
/// model (null: none) runs while the model does not.
std::vector<Budget> shared_budgets(const ModelPlan& plan, const ModelPlan* draft);

/// A line for each item, with bytes: weights, cache and the plan's budgets, those of a draft model,
/// their sum, and what the machine has.
std::string memory_table(const ModelPlan& plan, const Machine& machine, std::int64_t weight_bytes,
                         std::int64_t cache_tokens, const DraftMemory& draft = {});

}  // namespace lathe
