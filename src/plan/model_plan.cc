#include "plan/model_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"
#include "plan/budget.h"
#include "plan/prefix_sharing.h"

namespace lathe {
namespace {

// Whether the groups share the buffer: they run one at a time.
bool shared(BudgetKind kind) {
  switch (kind) {
    case BudgetKind::indexer_logits:
    case BudgetKind::gather:
    case BudgetKind::split_partials:
    case BudgetKind::worker_rows:
    case BudgetKind::expanded_keys:
    case BudgetKind::activations:
    case BudgetKind::hidden_rows:
    case BudgetKind::schedules:
    case BudgetKind::expert_rows:
    case BudgetKind::widened_weights:
    case BudgetKind::logits:
    case BudgetKind::dealt_logits:
    case BudgetKind::exchange:
    case BudgetKind::sampler:
    case BudgetKind::rope_tables:
    case BudgetKind::norm_codes:
    case BudgetKind::graphs:
    case BudgetKind::reserve:
      return true;
    case BudgetKind::top_k_rows:
    case BudgetKind::compressor_state:
    case BudgetKind::delta_states:
    case BudgetKind::step:
      return false;
  }
  return false;
}

std::vector<Budget> merged(const std::vector<GroupPlan>& groups) {
  std::vector<Budget> out;
  for (const BudgetKind kind : enum_values<BudgetKind>()) {
    Budget sum{kind, 0, 0};
    for (const GroupPlan& g : groups) {
      const Budget* b = g.plan.budget(kind);
      if (b == nullptr) continue;
      if (!shared(kind)) {
        sum.bytes += b->bytes;
      } else if (b->bytes >= sum.bytes) {
        sum = *b;
      }
    }
    if (sum.bytes > 0) out.push_back(sum);
  }
  return out;
}

std::int64_t block_tokens(const std::vector<GroupPlan>& groups) {
  std::int64_t out = 1;
  for (const GroupPlan& g : groups) {
    for (const CachePlan& c : g.plan.caches) {
      out = std::lcm(out, std::int64_t{c.page_size} * c.tokens_per_entry);
    }
    if (g.group.delta) out = std::lcm(out, kDeltaBlockTokens);
  }
  return out;
}

// A step's lists of slots, in a prefill segment and in a decode segment: as many as a request has
// blocks, which have at least kDeltaBlockTokens tokens.
void add_slot_lists(Plan& plan) {
  const std::int64_t slots = plan.context_length / kDeltaBlockTokens + 2;
  for (Budget& b : plan.budgets) {
    if (b.kind == BudgetKind::step) b.bytes += 2 * 4 * plan.max_requests * slots;
  }
}

}  // namespace

std::int32_t ModelPlan::layers() const {
  std::size_t sum = 0;
  for (const GroupPlan& g : groups) {
    sum += g.group.layers.size() + g.group.readers.size() +
           (g.group.delta ? g.group.delta->layers.size() : 0);
  }
  return static_cast<std::int32_t>(sum);
}

std::size_t ModelPlan::entry_groups() const {
  return static_cast<std::size_t>(
      std::count_if(groups.begin(), groups.end(),
                    [](const GroupPlan& g) { return g.plan.problem.two_sources(); }));
}

std::int64_t ModelPlan::kept_boundaries() const { return lathe::kept_boundaries(max_requests()); }

bool ModelPlan::has_state() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const GroupPlan& g) { return g.group.state_bytes > 0; });
}

const Budget* ModelPlan::budget(BudgetKind kind) const {
  const auto it = std::find_if(budgets.begin(), budgets.end(),
                               [kind](const Budget& b) { return b.kind == kind; });
  return it == budgets.end() ? nullptr : &*it;
}

std::int64_t ModelPlan::buffer_bytes() const { return bytes_of_budgets(budgets); }

double ModelPlan::bytes_per_token() const {
  double all = 0;
  double growing = 0;
  for (const GroupPlan& g : groups) {
    const double bytes = g.plan.bytes_per_token();
    all += bytes;
    if (kept_tokens(g.plan.problem) == 0) growing += bytes;
  }
  return growing > 0 ? growing : all;
}

ModelPlanResult make_model_plan(std::span<const LayerGroup> groups, const Machine& machine,
                                const PlanRequest& request, const Registry& registry,
                                std::vector<Rejection>* rejections) {
  LATHE_CHECK(!groups.empty(), "a model of no layers");
  const bool alone = groups.size() == 1;
  std::vector<GroupPlan> plans;
  for (const LayerGroup& group : groups) {
    LATHE_CHECK(!group.layers.empty(), "a layer group without layers");
    PlanRequest changed = request;
    changed.layers = static_cast<std::int32_t>(group.layers.size());
    changed.index_layers = static_cast<std::int32_t>(group.index_layers.size());
    if (!alone) changed.max_total_tokens = 0;
    PlanResult plan = make_plan(group.problem, machine, changed, registry, rejections);
    if (!plan) {
      Refusal refusal = plan.error();
      if (!alone) {
        refusal.headline = fmt::format("group {} ({}): {}", group.name, layers_text(group.layers),
                                       refusal.headline);
      }
      return refusal;
    }
    plans.push_back({group, *std::move(plan)});
  }
  ModelPlan out = join_groups(std::move(plans));
  if (!alone) {
    if (auto over = check_memory(out, machine, request, 0)) {
      Refusal refusal;
      refusal.headline = "the buffers do not fit";
      refusal.reasons.push_back(std::move(*over));
      return refusal;
    }
  }
  return out;
}

std::optional<Reason> check_memory(const ModelPlan& plan, const Machine& machine,
                                   const PlanRequest& request, std::int64_t weight_bytes) {
  const std::int64_t buffers = plan.buffer_bytes();
  if (buffers > machine.memory_bytes - weight_bytes) {
    return too_much(machine, plan.budgets, weight_bytes);
  }
  const auto cache = [&](std::int64_t tokens) {
    double sum = 0;
    for (const GroupPlan& g : plan.groups) {
      sum += static_cast<double>(cache_bytes(g.plan, tokens));
    }
    return sum;
  };
  const std::int64_t tokens =
      request.max_total_tokens > 0 ? request.max_total_tokens : plan.block_tokens;
  const std::int64_t taken = buffers + weight_bytes;
  const auto left = static_cast<double>(machine.memory_bytes - taken);
  if (cache(tokens) <= left) return std::nullopt;
  // Bytes are not proportional to tokens, because windows do not grow. So search by bisection, in
  // whole blocks.
  std::int64_t fit = 0;
  std::int64_t above = (tokens + plan.block_tokens - 1) / plan.block_tokens;
  while (above - fit > 1) {
    const std::int64_t middle = fit + (above - fit) / 2;
    (cache(middle * plan.block_tokens) <= left ? fit : above) = middle;
  }
  fit *= plan.block_tokens;
  return Reason{Rule::memory,
                "cache",
                "--max-total-tokens",
                fmt::format("at most {} tokens next to {} bytes of {}buffers", fit, taken,
                            weight_bytes > 0 ? "weights and " : ""),
                fmt::format("{} tokens, {:.0f} bytes", tokens, cache(tokens)),
                fit > 0 ? fmt::format("--max-total-tokens {}", fit) : ""};
}

Result<void> check_separate_prefixes(const ModelPlan& plan, const PlanRequest& request) {
  if (!request.separate_prefixes) return {};
  for (const GroupPlan& g : plan.groups) {
    if (what_separates_prefixes(g.plan, request).empty()) return {};
  }
  return Error{ErrorCode::invalid_argument, "--disable-cascade-attn",
               "decode steps that read shared keys once without it",
               what_separates_prefixes(plan.groups.front().plan, request), "leave it out"};
}

ModelPlan join_groups(std::vector<GroupPlan> groups) {
  ModelPlan out;
  for (GroupPlan& g : groups) {
    if (g.group.state_bytes == 0) continue;
    const std::int64_t banks = 1 + std::int64_t{g.plan.draft_tokens};
    // Replaces the budget that follows from the problem's kind alone.
    std::erase_if(g.plan.budgets,
                  [](const Budget& b) { return b.kind == BudgetKind::compressor_state; });
    out.state_slots =
        kStateSlotsPerRequest * g.plan.max_requests + lathe::kept_boundaries(g.plan.max_requests);
    const BudgetKind kind = g.group.delta ? BudgetKind::delta_states : BudgetKind::compressor_state;
    g.plan.budgets.push_back({kind, g.group.all_state_bytes() * banks * out.state_slots, 0});
    if (g.group.delta) add_slot_lists(g.plan);
  }
  out.groups = std::move(groups);
  out.budgets = out.groups.size() == 1 ? out.groups.front().plan.budgets : merged(out.groups);
  out.block_tokens = block_tokens(out.groups);
  for (const GroupPlan& g : out.groups) {
    const Plan& p = g.plan;
    std::int64_t bytes = g.group.all_state_bytes() * out.state_banks();
    if (p.problem.window > 0) {
      for (const CachePlan& c : p.caches) {
        if (p.problem.two_sources() && c.role != CacheRole::main) continue;
        bytes += boundary_pages(p) * p.layers_of(c.role) * c.page_bytes();
      }
    }
    out.boundary_bytes += out.kept_boundaries() * bytes;
  }
  return out;
}

ModelPlan one_group(Plan plan) {
  LayerGroup group{"all", plan.problem, {}, 0};
  group.layers.resize(static_cast<std::size_t>(plan.layers));
  std::iota(group.layers.begin(), group.layers.end(), 0);
  return join_groups({{std::move(group), std::move(plan)}});
}

std::string layers_text(std::span<const std::int32_t> layers) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? fmt::format("{}", layers[i])
                                : fmt::format("{}-{}", layers[i], layers[end - 1]));
    i = end;
  }
  constexpr std::size_t kShown = 6;
  if (runs.size() > kShown) {
    runs[kShown - 2] = "...";
    runs[kShown - 1] = runs.back();
    runs.resize(kShown);
  }
  if (layers.size() == 1) return "layer " + runs.front();
  return fmt::format("{} layers: {}", layers.size(), fmt::join(runs, ", "));
}

}  // namespace lathe
