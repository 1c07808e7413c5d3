#include "model/memory/fit_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "kernels/limits.h"
#include "model/layers/draft_layer.h"
#include "model/layers/hidden_rows.h"
#include "model/memory/activations.h"
#include "model/memory/gpu_budgets.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"
#include "plan/refuse.h"

namespace lathe {
namespace {

Refusal refuse(Reason reason) {
  Refusal out;
  out.headline = reason.rule == Rule::budget ? "the buffers do not fit" : "the model does not fit";
  out.reasons.push_back(std::move(reason));
  return out;
}

// Requirements of the GPU's operators on models with several streams, beyond its attention kernels'
// capabilities (kernels/limits.h).
std::optional<Reason> unfit_for_gpu(const ModelConfig& config) {
  if (!config.is_compressed()) return std::nullopt;
  const auto reason = [&](const char* field, std::string wanted, std::int64_t offered) {
    return Reason{Rule::device,      config.architecture,     field,
                  std::move(wanted), std::to_string(offered), "--device cpu"};
  };
  if (config.hyper.streams != cuda::kHyperStreams) {
    return reason("hc_mult", fmt::format("{} on a GPU", cuda::kHyperStreams), config.hyper.streams);
  }
  if (config.hidden % cuda::kHyperWord != 0) {
    return reason("hidden_size", fmt::format("a multiple of {} on a GPU", cuda::kHyperWord),
                  config.hidden);
  }
  for (const LayerGroupConfig& group : config.groups) {
    if (group.problem.index_dim > cuda::kHadamardMostDim) {
      return reason("index_head_dim", fmt::format("at most {} on a GPU", cuda::kHadamardMostDim),
                    group.problem.index_dim);
    }
  }
  return std::nullopt;
}

ModelPlanResult plan_once(const ModelConfig& config, std::optional<std::int64_t> stored,
                          const Machine& machine, const PlanRequest& request,
                          const Registry& registry, std::vector<Rejection>* rejections) {
  if (is_gpu(machine.device)) {
    if (auto unfit = unfit_for_gpu(config)) return refuse(std::move(*unfit));
  }
  ModelPlanResult plan =
      make_model_plan(config.layer_groups(), machine, request, registry, rejections);
  if (!plan) return plan;
  const auto activations = plan_activations(config, *plan, machine, request);
  if (const Reason* reason = std::get_if<Reason>(&activations)) return refuse(*reason);
  plan->budgets.push_back(std::get<Budget>(activations));
  if (config.drafts) {
    const DType dtype = is_gpu(machine.device) ? DType::bf16 : DType::f32;
    const auto sizes = HiddenRowSizes::of(*plan, kDraftUses, config.shared_choice_width());
    plan->budgets.push_back(
        {BudgetKind::hidden_rows, hidden_row_bytes(sizes, config.state_width(), dtype), 0});
  }
  if (is_gpu(machine.device)) {
    for (const Budget& b : gpu_budgets(config, *plan, machine)) plan->budgets.push_back(b);
  }
  if (plan->groups.size() == 1) plan->groups.front().plan.budgets = plan->budgets;
  const std::int64_t weights = weight_bytes(config, stored, expands(*plan));
  if (auto over = check_memory(*plan, machine, request, weights)) return refuse(std::move(*over));
  return plan;
}

}  // namespace

bool expands(const ModelPlan& plan) {
  for (const GroupPlan& g : plan.groups) {
    if (is_gpu(g.plan.device)) continue;
    for (const PhasePlan& phase : g.plan.phases) {
      for (const Route& route : phase.routes) {
        if (route.kind == KernelKind::ragged) return true;
      }
    }
  }
  return false;
}

std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion) {
  ModelWeights weights(config);
  std::int64_t sum = stored.value_or(0);
  if (!stored) {
    for (const TensorSpec& spec : tensor_table(config, weights)) sum += dummy_bytes(config, spec);
  }
  if (!config.is_mla()) return sum;
  // The copies of split_kv_b(): kv_b's keys transposed, all of it in f32 if a route expands, and
  // its values if heads are not whole fp8 blocks.
  for (std::int32_t l = 0; l < config.cached_layers(); ++l) {
    const AttentionProblem& p = config.attention(l);
    const bool whole = p.qk_nope_head % kWeightBlock == 0 && p.v_head % kWeightBlock == 0;
    const bool widen = config.block_fp8 && !whole;
    const DType dtype = widen ? DType::f32 : config.block_fp8 ? DType::e4m3 : DType::bf16;
    const std::int64_t keys = std::int64_t{p.heads} * p.nope * p.qk_nope_head;
    const std::int64_t values = std::int64_t{p.heads} * p.nope * p.v_head;
    sum += bytes_of(dtype, keys);
    if (expansion) sum += bytes_of(DType::f32, keys);
    if (expansion || widen) sum += bytes_of(DType::f32, values);
  }
  return sum;
}

ModelPlanResult fit_model(const ModelConfig& config, std::optional<std::int64_t> stored,
                          const Machine& machine, const PlanRequest& request,
                          const Registry& registry, std::vector<Rejection>* rejections) {
  ModelPlanResult plan = plan_once(config, stored, machine, request, registry, rejections);
  if (plan) return plan;
  Refusal refusal = plan.error();
  // Smaller sizes help only if sizes are the problem; a single group's plan has been tried already.
  const bool sizes =
      std::any_of(refusal.reasons.begin(), refusal.reasons.end(), [](const Reason& r) {
        return (r.rule == Rule::memory && r.hint.empty()) || r.subject == "activations";
      });
  if (sizes) {
    refusal.suggestions = sizes_that_fit(request, [&](const PlanRequest& changed) {
      return plan_once(config, stored, machine, changed, registry, nullptr).ok();
    });
  }
  return refusal;
}

}  // namespace lathe
