// ModelPlan: a plan for each layer group of a model, for the same request and machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/compressor.h"
#include "attn/delta_rule.h"
#include "plan/plan.h"
#include "plan/planner.h"
#include "plan/rank_plan.h"

namespace lathe {

/// Delta-rule layers (kernels/delta_rule.h). They have no keys, but a state of each request.
struct DeltaLayers {
  DeltaRuleProblem problem;
  std::vector<std::int32_t> layers;  // ascending

  bool operator==(const DeltaLayers&) const = default;
};

/// Bytes that a layer of a delta rule keeps for a request in a group of that attention problem.
/// Where several tokens share an index key, the keys that attention layers have begun follow the
/// states of as many delta-rule layers: the first layer's key the first state, and so on.
constexpr std::int64_t state_bytes(const DeltaRuleProblem& delta, const AttentionProblem& problem) {
  return delta_state_bytes(delta) + compressor_bytes(problem);
}

/// Chunks of the delta rule end at blocks of a request, so blocks are multiples of this.
inline constexpr std::int64_t kDeltaBlockTokens = 64;

/// Layers of a model that share an attention problem, caches and routes.
struct LayerGroup {
  std::string name;  // "window"; unique in a model
  AttentionProblem problem;
  // Ascending. Every layer of a model is in one group: here, in `readers` or in `delta`.
  std::vector<std::int32_t> layers;
  // Bytes of state that each of state_layers() keeps between a request's tokens; 0: none.
  std::int64_t state_bytes = 0;
  // Layers that select keys themselves, so have an index cache. Empty: all, if the problem has one.
  std::vector<std::int32_t> index_layers = {};
  // Delta-rule layers, which run with the steps of this group's requests and have its state.
  std::optional<DeltaLayers> delta = std::nullopt;
  // Layers that read the keys and values of the last one of `layers`. Ascending.
  std::vector<std::int32_t> readers = {};

  /// Layers with a state: V4's compressors are in the group's own layers.
  const std::vector<std::int32_t>& state_layers() const { return delta ? delta->layers : layers; }
  /// Bytes of a request's states in all layers, in one slot without banks.
  std::int64_t all_state_bytes() const {
    return state_bytes * static_cast<std::int64_t>(state_layers().size());
  }
  bool operator==(const LayerGroup&) const = default;
};

/// Most slots of state that a request holds at once: the one that it resumes from, the one at the
/// last block boundary, and two that a step writes to replace these.
inline constexpr std::int64_t kStateSlotsPerRequest = 4;
inline constexpr std::int64_t kStateSlotsPerStep = 2;

struct GroupPlan {
  LayerGroup group;
  Plan plan;  // plan.layers is the number of the group's layers

  bool operator==(const GroupPlan&) const = default;
};

struct ModelPlan {
  std::vector<GroupPlan> groups;  // at least one
  // How ranks share the model; the groups' problems are a rank's. Of one rank by default.
  RankPlan ranks;
  // For all groups: a buffer that they use in turn counts once; memory that each group keeps is
  // summed.
  std::vector<Budget> budgets;
  // Tokens of a block: the least number that is a whole number of pages in every group. States are
  // kept at block boundaries.
  std::int64_t block_tokens = 1;
  std::int64_t state_slots = 0;  // slots of each group with a state
  // Bytes of window pages and states before kept_boundaries() boundaries inside prompts, where
  // later requests can resume. They are included in the pools and in the states' budget.
  // 0: the model has neither windows nor states.
  std::int64_t boundary_bytes = 0;
  /// States per slot: one after every row of a request in a step that verifies drafts.
  std::int64_t state_banks() const { return 1 + std::int64_t{draft_tokens()}; }

  // These are equal in all groups.
  std::int64_t max_rows() const { return groups.front().plan.max_rows; }
  std::int64_t max_requests() const { return groups.front().plan.max_requests; }
  std::int32_t draft_tokens() const { return groups.front().plan.draft_tokens; }
  std::int64_t context_length() const { return groups.front().plan.context_length; }

  std::int32_t layers() const;
  /// The number of boundaries that boundary_bytes are for.
  std::int64_t kept_boundaries() const;
  /// Number of groups with compressed entries.
  std::size_t entry_groups() const;
  bool has_state() const;
  /// True if a single plan says everything: one group, without a state.
  bool plain() const { return groups.size() == 1 && !has_state(); }
  const Budget* budget(BudgetKind kind) const;
  /// Bytes of all budgets.
  std::int64_t buffer_bytes() const;
  /// Bytes of one more token of a long request, in all layers. Groups with a window do not count,
  /// unless all groups have one.
  double bytes_per_token() const;

  bool operator==(const ModelPlan&) const = default;
};

using ModelPlanResult = Result<ModelPlan, Refusal>;

/// Plans every group with the same request (request.layers is not used). A refusal names the group
/// and its layers, unless it concerns all groups (the machine's memory). Precondition: at least one
/// group, each with layers.
ModelPlanResult make_model_plan(std::span<const LayerGroup> groups, const Machine& machine,
                                const PlanRequest& request, const Registry& registry,
                                std::vector<Rejection>* rejections = nullptr);

/// The reason if weights, buffers and cache exceed the machine's memory. The cache counts for
/// --max-total-tokens, or for one block if that is 0. make_plan() cannot check this: it knows a
/// single group and no weights.
std::optional<Reason> check_memory(const ModelPlan& plan, const Machine& machine,
                                   const PlanRequest& request, std::int64_t weight_bytes);

/// The error if --disable-cascade-attn is asked for, and no group reads shared prefixes once
/// without it.
Result<void> check_separate_prefixes(const ModelPlan& plan, const PlanRequest& request);

/// Joins the plans of the groups. Precondition: at least one group, all planned for the same steps.
ModelPlan join_groups(std::vector<GroupPlan> groups);

/// A model with one plan for all layers.
ModelPlan one_group(Plan plan);

/// "12 layers: 1, 3, 5, 7, 9, ..., 23", "layer 4", "61 layers: 0-60"
std::string layers_text(std::span<const std::int32_t> layers);

}  // namespace lathe
