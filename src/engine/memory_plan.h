// The memory of a model's run, planned before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/machine.h"
#include "attn/model_plan.h"
#include "attn/plan_request.h"
#include "layout/pool_group.h"

namespace lathe {

/// Tokens that the cache holds: request.max_total_tokens, or what fits beside weights and buffers,
/// a whole number of blocks, and no more than all running requests can hold.
std::int64_t cache_tokens(const ModelPlan& plan, const PlanRequest& request, const Machine& machine,
                          std::int64_t weight_bytes);

/// What KvCache::create() takes, for so many tokens.
std::vector<PoolSize> pool_sizes(const ModelPlan& plan, std::int64_t tokens);
/// Bytes of all groups' pages for so many tokens.
double pool_bytes(const ModelPlan& plan, std::int64_t tokens);

/// What a step takes of the arena of tensors: activations, the keys that indexers choose, and on a
/// GPU what experts, indexers and draws work in.
std::int64_t tensor_bytes(const ModelPlan& plan);

/// A line for each item, with bytes: weights, cache and the plan's budgets, their sum, and what the
/// machine has.
std::string memory_table(const ModelPlan& plan, const Machine& machine, std::int64_t weight_bytes,
                         std::int64_t cache_tokens);

}  // namespace lathe
