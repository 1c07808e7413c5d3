#include "model/memory/fit_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "attn/draft_rows.h"
#include "kernels/entry_limits.h"
#include "kernels/limits.h"
#include "model/layers/draft_layer.h"
#include "model/layers/hidden_rows.h"
#include "model/memory/activations.h"
#include "model/memory/gpu_budgets.h"
#include "model/memory/plan_ranks.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"
#include "plan/plan_request_json.h"
#include "plan/refuse.h"

namespace lathe {
namespace {

Refusal refuse(Reason reason) {
  Refusal out;
  out.headline = reason.rule == Rule::budget    ? "the buffers do not fit"
                 : reason.rule == Rule::request ? "the request is not one that can be planned"
                                                : "the model does not fit";
  out.reasons.push_back(std::move(reason));
  return out;
}

// Requirements of the GPU's operators beyond its attention kernels' capabilities
// (kernels/limits.h).
class UnfitForGpu {
 public:
  explicit UnfitForGpu(const ModelConfig& config) : config_(config) {}

  std::optional<Reason> reason() const {
    if (config_.hyper.streams > 0) {
      if (auto unfit = streams()) return unfit;
    }
    if (auto wide = index_keys()) return wide;
    return delta_rule();
  }

 private:
  Reason refuse(const char* field, const std::string& wanted, std::int64_t offered) const {
    return {Rule::device,         config_.architecture,    field,
            wanted + " on a GPU", std::to_string(offered), "--device cpu"};
  }
  // Index keys that tokens share are made by the compressor's kernel.
  std::optional<Reason> index_keys() const {
    for (const LayerGroupConfig& group : config_.groups) {
      const AttentionProblem& p = group.problem;
      if (p.index_pool == 0 || p.index_dim <= cuda::kCompressMostDim) continue;
      return refuse("index_head_dim", fmt::format("at most {}", cuda::kCompressMostDim),
                    p.index_dim);
    }
    return std::nullopt;
  }
  std::optional<Reason> delta_rule() const {
    if (config_.delta.layers.empty()) return std::nullopt;
    const DeltaRuleProblem& p = config_.delta.problem;
    const auto most = [&](const char* field, std::int32_t width) -> std::optional<Reason> {
      if (width <= cuda::kDeltaMostHead) return std::nullopt;
      return refuse(field, fmt::format("at most {}", cuda::kDeltaMostHead), width);
    };
    if (auto wide = most("width of key heads in the delta rule", p.dk)) return wide;
    if (auto wide = most("width of value heads in the delta rule", p.dv)) return wide;
    if (p.conv == cuda::kDeltaConvTaps) return std::nullopt;
    return refuse("taps of the convolution", fmt::format("{}", cuda::kDeltaConvTaps), p.conv);
  }
  std::optional<Reason> streams() const {
    if (config_.hyper.streams != cuda::kHyperStreams) {
      return refuse("hc_mult", fmt::format("{}", cuda::kHyperStreams), config_.hyper.streams);
    }
    if (config_.hidden % cuda::kHyperWord != 0) {
      return refuse("hidden_size", fmt::format("a multiple of {}", cuda::kHyperWord),
                    config_.hidden);
    }
    for (const LayerGroupConfig& group : config_.groups) {
      if (!config_.is_compressed() || group.problem.index_dim <= cuda::kHadamardMostDim) continue;
      return refuse("index_head_dim", fmt::format("at most {}", cuda::kHadamardMostDim),
                    group.problem.index_dim);
    }
    return std::nullopt;
  }

  const ModelConfig& config_;
};

// The budgets of exchanges, which a single rank does not have.
void add_exchange_budgets(const ModelConfig& config, const PlanRequest& request, ModelPlan& plan) {
  const std::int32_t n = plan.ranks.parallel.tp;
  if (n == 1) return;
  const std::int64_t decoding = decoding_rows(request.max_running_requests, request.draft_tokens);
  plan.budgets.push_back({BudgetKind::exchange,
                          exchange_bytes(plan.ranks.exchange, n, plan.max_rows() + decoding), 0});
  const std::int64_t dealt = (decoding + n - 1) / n;
  plan.budgets.push_back({BudgetKind::dealt_logits, dealt * config.vocab * 4, 0});
}

// Names the fullest rank, which all ranks' memory is planned for.
Reason of_rank(Reason reason, const RankPlan& ranks) {
  if (ranks.parallel.tp > 1) {
    reason.subject = fmt::format("rank {}'s {}", ranks.fullest, reason.subject);
  }
  return reason;
}

// machine: a rank's.
ModelPlanResult plan_once(const ModelConfig& config, std::optional<std::int64_t> stored,
                          const Machine& machine, const PlanRequest& request,
                          const Registry& registry, const RankPlan& ranks, ShareBytes& shares,
                          std::vector<Rejection>* rejections) {
  if (is_gpu(machine.device)) {
    if (auto unfit = UnfitForGpu(config).reason()) return refuse(std::move(*unfit));
  }
  // Tokens are counted below, next to weights and all buffers: a bound without them would be none.
  PlanRequest any_tokens = request;
  if (request.max_total_tokens > 0) any_tokens.max_total_tokens = 0;
  ModelPlanResult plan =
      make_model_plan(rank_groups(config, ranks), machine, any_tokens, registry, rejections);
  if (!plan) return plan;
  plan->ranks = ranks;
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
  add_exchange_budgets(config, request, *plan);
  if (plan->groups.size() == 1) plan->groups.front().plan.budgets = plan->budgets;
  const std::int64_t weights = weight_bytes(config, stored, expands(*plan), ranks, shares);
  if (auto over = check_memory(*plan, machine, request, weights)) {
    return refuse(of_rank(std::move(*over), ranks));
  }
  return plan;
}

Reason reason_of(const Error& e) {
  return {Rule::request, e.field, e.field, e.wanted, e.offered, e.hint};
}

Refusal cannot_share(std::vector<Reason> reasons, const PlanRequest& request) {
  Refusal out;
  out.headline = fmt::format("{} ranks cannot share the model", request.tp);
  out.reasons = std::move(reasons);
  return out;
}

// A number of ranks with which everything fits: the nearest larger one, else the largest smaller.
std::optional<std::string> ranks_that_fit(const Machine& machine, const PlanRequest& request,
                                          const std::function<bool(const PlanRequest&)>& fits) {
  std::vector<std::int32_t> order;
  for (std::int32_t n = 2 * request.tp; n <= std::min(kMostRanks, machine.ranks); n *= 2) {
    order.push_back(n);
  }
  for (std::int32_t n = request.tp / 2; n >= 1; n /= 2) order.push_back(n);
  for (const std::int32_t n : order) {
    PlanRequest changed = request;
    changed.tp = n;
    std::string flags = fmt::format("--tp {}", n);
    // One rank has no such flags, and WxE is of one number of ranks.
    for (const auto& [flag, value] : {std::pair{"--expert-split", &PlanRequest::expert_split},
                                      {"--exchange", &PlanRequest::exchange},
                                      {"--exchange-dtype", &PlanRequest::exchange_dtype}}) {
      std::string& text = changed.*value;
      if (text == "auto" || (n > 1 && text.find('x') == std::string::npos)) continue;
      flags += fmt::format(" {} auto", flag);
      text = "auto";
    }
    if (check_ranks(changed) && fits(changed)) return flags;
  }
  return std::nullopt;
}

// Drops suggestions and hints that are flags with which the model is refused, too: rules and the
// planner of a group know neither the weights nor other groups.
void keep_flags_that_fit(
    Refusal& refusal, const PlanRequest& request,
    const std::function<bool(std::optional<Device>, const PlanRequest&)>& fits) {
  constexpr std::string_view kDevice = "--device ";
  const auto fails = [&](const std::string& flags) {
    if (flags.starts_with(kDevice)) {
      const auto device = parse_enum<Device>(std::string_view(flags).substr(kDevice.size()));
      return device && !fits(*device, request);
    }
    const auto changed = with_flags(request, flags);
    return changed && !fits(std::nullopt, *changed);
  };
  std::erase_if(refusal.suggestions, fails);
  for (Reason& r : refusal.reasons) {
    if (r.hint.starts_with("--") && fails(r.hint)) r.hint.clear();
  }
}

// Bytes of the copies of split_kv_b(): kv_b's keys transposed, all of it in f32 if a route expands,
// and its values if heads are not whole fp8 blocks.
std::int64_t load_copies(const ModelConfig& config, bool expansion) {
  if (!config.is_mla()) return 0;
  // In these formats kv_b itself is widened, to f32 at most.
  const bool widens =
      config.quantization != Quantization::none && config.quantization != Quantization::fp8_blocks;
  std::int64_t sum = 0;
  for (std::int32_t l = 0; l < config.cached_layers(); ++l) {
    if (config.is_delta(l)) continue;
    const AttentionProblem& p = config.attention(l);
    const bool whole = p.qk_nope_head % kWeightBlock == 0 && p.v_head % kWeightBlock == 0;
    if (widens) {
      const std::int64_t kv_b = std::int64_t{p.heads} * p.nope * (p.qk_nope_head + p.v_head);
      sum += bytes_of(DType::f32, kv_b);
    }
    const bool widen = config.block_fp8 && !whole;
    const DType dtype = widen || widens ? DType::f32 : config.block_fp8 ? DType::e4m3 : DType::bf16;
    const std::int64_t keys = std::int64_t{p.heads} * p.nope * p.qk_nope_head;
    const std::int64_t values = std::int64_t{p.heads} * p.nope * p.v_head;
    sum += bytes_of(dtype, keys);
    if (expansion) sum += bytes_of(DType::f32, keys);
    if (expansion || widen) sum += bytes_of(DType::f32, values);
  }
  return sum;
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
  return weight_bytes(config, stored, expansion, RankPlan());
}

std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion, const RankPlan& ranks) {
  ShareBytes shares(config);
  return weight_bytes(config, stored, expansion, ranks, shares);
}

std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion, const RankPlan& ranks, ShareBytes& shares) {
  if (ranks.parallel.tp == 1) {
    return (stored ? *stored : shares.whole().sum()) + load_copies(config, expansion);
  }
  // Stored formats may differ from those that the configuration names, in every share alike.
  const double ratio =
      stored ? static_cast<double>(*stored) / static_cast<double>(shares.whole().sum()) : 1;
  ModelConfig rank = config;
  for (LayerGroupConfig& group : rank.groups) {
    group.problem = rank_problem(group.problem, ranks.parallel.tp);
  }
  return static_cast<std::int64_t>(ratio * static_cast<double>(ranks.weight_bytes)) +
         load_copies(rank, expansion);
}

ModelPlanResult fit_model(const ModelConfig& config, std::optional<std::int64_t> stored,
                          const Machine& machine, const PlanRequest& request,
                          const Registry& registry, std::vector<Rejection>* rejections) {
  if (const auto ok = check_ranks(request); !ok) return refuse(reason_of(ok.error()));
  // Sizes are searched by many attempts with the same ranks.
  ShareBytes shares(config);
  std::map<std::pair<std::int32_t, std::int64_t>, Result<RankPlan, std::vector<Reason>>> known;
  const auto attempt = [&](const PlanRequest& changed) -> ModelPlanResult {
    const std::pair key(changed.tp, changed.max_running_requests);
    auto ranks = known.find(key);
    if (ranks == known.end()) {
      ranks = known.emplace(key, plan_ranks(config, machine, changed, shares)).first;
    }
    if (!ranks->second) return cannot_share(ranks->second.error(), changed);
    return plan_once(config, stored, rank_machine(machine, changed.tp), changed, registry,
                     *ranks->second, shares, changed == request ? rejections : nullptr);
  };
  ModelPlanResult plan = attempt(request);
  if (plan && request.tp > 1) {
    plan->ranks.floors = decode_floors(config, *plan, rank_machine(machine, request.tp), shares);
  }
  if (plan) return plan;
  Refusal refusal = plan.error();
  const auto some = [&](const std::function<bool(const Reason&)>& test) {
    return std::ranges::any_of(refusal.reasons, test);
  };
  // Smaller sizes help only if sizes are the problem; a single group's plan has been tried already.
  const bool memory =
      some([](const Reason& r) { return r.rule == Rule::memory && r.hint.empty(); });
  if (memory || some([](const Reason& r) { return r.subject == "activations"; })) {
    refusal.suggestions =
        sizes_that_fit(request, [&](const PlanRequest& changed) { return attempt(changed).ok(); });
  }
  const bool gpus = is_gpu(machine.device) && (memory || request.tp > 1);
  if (gpus || some([](const Reason& r) { return r.rule == Rule::ranks; })) {
    const auto ranks = ranks_that_fit(
        machine, request, [&](const PlanRequest& changed) { return attempt(changed).ok(); });
    if (ranks) refusal.suggestions.push_back(*ranks);
  }
  keep_flags_that_fit(
      refusal, request, [&](std::optional<Device> device, const PlanRequest& changed) {
        const Machine on =
            device && *device != machine.device ? describe_machine(*device) : machine;
        const auto ranks = plan_ranks(config, on, changed, shares);
        return ranks && plan_once(config, stored, rank_machine(on, changed.tp), changed, registry,
                                  *ranks, shares, nullptr)
                            .ok();
      });
  return refusal;
}

}  // namespace lathe
