// ModelPlan: the plans of a model's layer groups, made with the same request for one machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/planner.h"

namespace lathe {

/// Layers of a model that share an attention problem, its caches and its routes.
struct LayerGroup {
  std::string name;  // "window"; unique in a model
  AttentionProblem problem;
  std::vector<std::int32_t> layers;  // ascending; every layer of a model is in one group
  // Bytes that a layer carries from token to token of a request, such as a compressor's; 0: none.
  std::int64_t state_bytes = 0;
  // Those that choose keys themselves and so have an index cache; empty: all that have one.
  std::vector<std::int32_t> index_layers = {};

  bool operator==(const LayerGroup&) const = default;
};

/// Most slots of a state that a request holds at once: the one that it resumes from, the one at the
/// last block boundary, and the two that a step takes to replace them.
inline constexpr std::int64_t kStateSlotsPerRequest = 4;
inline constexpr std::int64_t kStateSlotsPerStep = 2;

struct GroupPlan {
  LayerGroup group;
  Plan plan;  // plan.layers is the number of the group's layers

  bool operator==(const GroupPlan&) const = default;
};

struct ModelPlan {
  std::vector<GroupPlan> groups;  // at least one
  // Of all groups: a buffer that they use in turn counts once, what each keeps is summed.
  std::vector<Budget> budgets;
  // Tokens of a block: the least number that is a whole number of pages in every group. A state is
  // kept at such boundaries.
  std::int64_t block_tokens = 1;
  std::int64_t state_slots = 0;  // of each group that has a state
  /// States in each slot: after every row of a request in a step that checks drafts.
  std::int64_t state_banks() const { return 1 + std::int64_t{draft_tokens()}; }

  // The same in every group.
  std::int64_t max_rows() const { return groups.front().plan.max_rows; }
  std::int64_t max_requests() const { return groups.front().plan.max_requests; }
  std::int32_t draft_tokens() const { return groups.front().plan.draft_tokens; }
  std::int64_t context_length() const { return groups.front().plan.context_length; }

  std::int32_t layers() const;
  /// Groups with compressed entries.
  std::size_t entry_groups() const;
  bool has_state() const;
  /// True if a single plan says everything: one group, without a state.
  bool plain() const { return groups.size() == 1 && !has_state(); }
  const Budget* budget(BudgetKind kind) const;
  /// Bytes of all budgets.
  std::int64_t buffer_bytes() const;
  /// Bytes that one more token of a long request takes in all layers. Groups with a window count
  /// only where every group has one.
  double bytes_per_token() const;

  bool operator==(const ModelPlan&) const = default;
};

using ModelPlanResult = Result<ModelPlan, Refusal>;

/// Plans every group with the same request (request.layers is not read). A refusal names the group
/// and its layers; what concerns all of them, such as the machine's memory, names none.
/// Precondition: at least one group, each with layers.
ModelPlanResult make_model_plan(std::span<const LayerGroup> groups, const Machine& machine,
                                const PlanRequest& request, const Registry& registry,
                                std::vector<Rejection>* rejections = nullptr);

/// Why the weights, all groups' buffers and the cache of --max-total-tokens (of one block where it
/// is 0) exceed the machine; make_plan() sees one group at a time, and no weights.
std::optional<Reason> check_memory(const ModelPlan& plan, const Machine& machine,
                                   const PlanRequest& request, std::int64_t weight_bytes);

/// The plan of a model from those of its groups. Precondition: at least one group; each has planned
/// for the same steps.
ModelPlan join_groups(std::vector<GroupPlan> groups);

/// A model whose layers share one plan.
ModelPlan one_group(Plan plan);

/// "12 layers: 1, 3, 5, 7, 9, ..., 23", "layer 4", "61 layers: 0-60"
std::string layers_text(std::span<const std::int32_t> layers);

}  // namespace lathe
