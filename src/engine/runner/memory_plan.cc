#include "engine/runner/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/schedule/schedule.h"
#include "plan/budget.h"
#include "plan/explain.h"

namespace lathe {
namespace {

// Pages of a group for requests of `tokens` tokens together: one with a window needs no more than
// all running requests hold at once, however long they are, and kept boundaries.
std::int64_t group_pages(const ModelPlan& plan, const Plan& p, std::int64_t tokens) {
  const std::int64_t pages = pages_for(tokens, p.main().page_size);
  if (kept_tokens(p.problem) == 0) return pages;
  return std::min(pages, most_window_pages(p, plan.block_tokens));
}

// Buffers that hold nothing after a step, so that two models can share them. They are in the arena
// of tensors or in the backend's reserved memory.
bool is_shared(BudgetKind kind) {
  switch (kind) {
    case BudgetKind::activations:
    case BudgetKind::top_k_rows:
    case BudgetKind::indexer_logits:
    case BudgetKind::expert_rows:
    case BudgetKind::widened_weights:
    case BudgetKind::sampler:
    case BudgetKind::step:
    case BudgetKind::split_partials:
    case BudgetKind::expanded_keys:
    case BudgetKind::norm_codes:
      return true;
    case BudgetKind::gather:
    case BudgetKind::worker_rows:
    case BudgetKind::compressor_state:
    case BudgetKind::delta_states:
    case BudgetKind::hidden_rows:
    case BudgetKind::schedules:
    case BudgetKind::logits:
    case BudgetKind::dealt_logits:
    case BudgetKind::exchange:
    case BudgetKind::rope_tables:
    case BudgetKind::graphs:
    case BudgetKind::reserve:
      return false;
  }
  return false;
}

}  // namespace

double pool_bytes(const ModelPlan& plan, std::int64_t tokens) {
  double sum = 0;
  for (const GroupPlan& g : plan.groups) {
    const bool two = g.plan.problem.two_sources();
    for (const CachePlan& c : g.plan.caches) {
      const std::int64_t pages = two && c.role != CacheRole::main
                                     ? pages_for(tokens, entry_page_tokens(g.plan))
                                     : group_pages(plan, g.plan, tokens);
      sum += g.plan.layers_of(c.role) * static_cast<double>(c.page_bytes()) *
             static_cast<double>(pages);
    }
  }
  return sum;
}

std::int64_t DraftMemory::buffer_bytes(const ModelPlan* model) const {
  if (plan == nullptr) return 0;
  std::int64_t sum = 0;
  for (const Budget& b : plan->budgets) {
    if (b.kind == BudgetKind::reserve) continue;
    const Budget* theirs = model != nullptr ? model->budget(b.kind) : nullptr;
    const std::int64_t had = theirs != nullptr ? theirs->bytes : 0;
    if (b.kind == BudgetKind::schedules) {  // half of them are shared, in Backend::reserve()
      sum += b.bytes / 2 + std::max<std::int64_t>(0, b.bytes - had) / 2;
    } else {
      sum += is_shared(b.kind) ? std::max<std::int64_t>(0, b.bytes - had) : b.bytes;
    }
  }
  return sum;
}

double DraftMemory::pool_bytes(std::int64_t tokens) const {
  return plan != nullptr ? lathe::pool_bytes(*plan, tokens) : 0;
}

Machine beside_draft(Machine machine, const DraftMemory& draft, const PlanRequest& request) {
  if (draft.plan == nullptr) return machine;
  const std::int64_t tokens =
      request.max_total_tokens > 0 ? request.max_total_tokens : draft.plan->block_tokens;
  const std::int64_t taken = draft.weight_bytes + draft.buffer_bytes() +
                             static_cast<std::int64_t>(draft.pool_bytes(tokens));
  // Each rank has a share of the draft model, on a CPU all of them in its memory.
  const std::int64_t ranks = is_gpu(machine.device) ? 1 : request.tp;
  machine.memory_bytes = std::max<std::int64_t>(0, machine.memory_bytes - ranks * taken);
  for (std::int64_t& bytes : machine.free_bytes) bytes = std::max<std::int64_t>(0, bytes - taken);
  return machine;
}

// On a CPU half of the free memory is the limit, which is generous: memory that no request has
// touched costs nothing, because the system hands it out page by page. On a GPU the plan accounts
// for everything, a reserve included, so all free memory is used.
std::int64_t cache_tokens(const ModelPlan& plan, const PlanRequest& request, const Machine& machine,
                          std::int64_t weight_bytes, const DraftMemory& draft) {
  if (request.max_total_tokens > 0) return request.max_total_tokens;
  const std::int64_t taken =
      weight_bytes + plan.buffer_bytes() + draft.weight_bytes + draft.buffer_bytes(&plan);
  const double left = static_cast<double>(std::max<std::int64_t>(0, machine.memory_bytes - taken));
  const double room = is_gpu(machine.device) ? left : left / 2;
  // Searched in blocks, which are whole pages in every group.
  const std::int64_t block = plan.block_tokens;
  std::int64_t fit = 0;
  std::int64_t above =
      std::min(plan.max_requests() * pages_for(plan.context_length(), block), kMaxSlots / block) +
      1;
  while (above - fit > 1) {
    const std::int64_t middle = fit + (above - fit) / 2;
    const double bytes = pool_bytes(plan, middle * block) + draft.pool_bytes(middle * block);
    (bytes <= room ? fit : above) = middle;
  }
  return std::max<std::int64_t>(1, fit) * block;
}

std::vector<PoolSize> pool_sizes(const ModelPlan& plan, std::int64_t tokens) {
  std::vector<PoolSize> out;
  for (const GroupPlan& g : plan.groups) {
    out.push_back({.budget_bytes = 0, .pages = group_pages(plan, g.plan, tokens)});
  }
  for (const GroupPlan& g : plan.groups) {
    if (!g.plan.problem.two_sources()) continue;
    out.push_back({.budget_bytes = 0, .pages = pages_for(tokens, entry_page_tokens(g.plan))});
  }
  return out;
}

std::int64_t tensor_bytes(const ModelPlan& plan) {
  std::int64_t sum = 0;
  const auto add = [&](BudgetKind kind) {
    if (const Budget* b = plan.budget(kind)) sum += b->bytes;
  };
  add(BudgetKind::activations);
  add(BudgetKind::top_k_rows);
  if (!is_gpu(plan.groups.front().plan.device)) {
    add(BudgetKind::exchange);
    add(BudgetKind::dealt_logits);
    return sum;
  }
  add(BudgetKind::indexer_logits);
  add(BudgetKind::expert_rows);
  add(BudgetKind::widened_weights);
  add(BudgetKind::sampler);
  // The list of the gather workspace's rows, of 1 KiB or more each (attend_selected.cc).
  if (const Budget* gather = plan.budget(BudgetKind::gather)) {
    sum += gather->bytes / 256 + 8 * plan.max_rows() + 256;
  }
  return sum;
}

std::vector<Budget> shared_budgets(const ModelPlan& plan, const ModelPlan* draft) {
  std::vector<Budget> out = plan.budgets;
  if (draft == nullptr) return out;
  for (const Budget& b : draft->budgets) {
    const auto same = std::ranges::find(out, b.kind, &Budget::kind);
    if (same == out.end()) {
      out.push_back(b);
    } else {
      same->bytes = std::max(same->bytes, b.bytes);
    }
  }
  return out;
}

std::string memory_table(const ModelPlan& plan, const Machine& machine, std::int64_t weight_bytes,
                         std::int64_t cache_tokens, const DraftMemory& draft) {
  const auto cache = static_cast<std::int64_t>(pool_bytes(plan, cache_tokens));
  const auto draft_cache = static_cast<std::int64_t>(draft.pool_bytes(cache_tokens));
  std::string out = "memory\n";
  const auto line = [&](std::string_view name, std::int64_t bytes, const std::string& note = "") {
    out += fmt::format("  {:<18}{:>10}{}\n", name, human_bytes(bytes), note);
  };
  line("weights", weight_bytes);
  line("cache", cache, fmt::format("  {} tokens", cache_tokens));
  for (const Budget& b : plan.budgets) line(meaning(b.kind), b.bytes);
  if (draft.plan != nullptr) {
    line("draft weights", draft.weight_bytes);
    line("draft cache", draft_cache);
    line("draft buffers", draft.buffer_bytes(&plan));
  }
  line("in all",
       weight_bytes + cache + plan.buffer_bytes() + draft.weight_bytes + draft_cache +
           draft.buffer_bytes(&plan),
       fmt::format("  of {} on {}", human_bytes(machine.memory_bytes), machine.model));
  return out;
}

}  // namespace lathe
