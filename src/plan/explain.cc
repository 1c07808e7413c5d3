#include "plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace lathe {
namespace {

std::string cache_line(const Plan& plan, const CachePlan& c) {
  const bool alone = plan.caches.size() == 1;
  std::string out = fmt::format(
      "{:<10}{:<15}{} B per {}", "cache", c.layout.name(), c.layout.bytes_per_token(),
      c.tokens_per_entry == 1 ? "token and layer"
                              : fmt::format("entry of {} tokens and layer", c.tokens_per_entry));
  out += fmt::format(", page {} = {} B", c.page_size, grouped(c.page_bytes()));
  if (!alone) out += fmt::format("   ({})", name(c.role));
  if (const std::int32_t layers = plan.layers_of(c.role); layers < plan.layers) {
    out +=
        fmt::format("   in {} of {} layers, whose selection the others share", layers, plan.layers);
  }
  if (c.layout.scale_policy() == ScalePolicy::raw_f32) out += "   scales raw_f32";
  return out + "\n";
}

std::string where(const Route& r) {
  if (r.unit == KeyUnit::ragged_row) return "compact rows, RaggedRow";
  if (r.kind == KernelKind::ragged) return "latents expanded per head";
  if (r.adapter) return "converted pages, Slot";
  return "pages in place, Slot";
}

std::string details(const Plan& plan, const Route& r) {
  std::vector<std::string> parts = {fmt::format("{} arithmetic", name(r.arithmetic))};
  if (r.adapter) {
    std::string a = fmt::format("adapter {} {} → {} B/row", r.adapter->name, r.adapter->in_bytes,
                                r.adapter->out_bytes);
    if (r.adapter->whole_pool) a += ", of the whole pool at each call";
    if (!r.adapter->exact) a += ", lossy";
    const Budget* gather = plan.budget(BudgetKind::gather);
    if (gather != nullptr && !r.adapter->whole_pool) {
      a += fmt::format(", {} {}", gather->tile_rows > 0 ? "tiled to" : "in",
                       human_bytes(gather->bytes));
    }
    parts.push_back(a);
  }
  if (r.min_rows > 1) {
    parts.push_back(fmt::format("from {} rows of a request on", grouped(r.min_rows)));
  }
  if (r.max_rows != 0) parts.push_back(fmt::format("up to {} rows", grouped(r.max_rows)));
  if (r.max_context != 0) {
    parts.push_back(fmt::format("while context ≤ {}", grouped(r.max_context)));
  }
  parts.push_back(r.kernel);
  return fmt::format("{}", fmt::join(parts, "   "));
}

// Compares routes by what is printed, so without the estimated time.
bool same_routes(const PhasePlan& a, const PhasePlan& b) {
  return std::equal(a.routes.begin(), a.routes.end(), b.routes.begin(), b.routes.end(),
                    [](Route x, Route y) {
                      x.seconds = y.seconds = 0;
                      return x == y;
                    });
}

std::string phase_lines(const Plan& plan, const PhasePlan& phase) {
  if (phase.routes.empty()) return fmt::format("{:<10}no kernel\n", name(phase.phase));
  std::string out;
  std::string_view label = name(phase.phase);
  for (const Route& r : phase.routes) {
    const std::string requested = fmt::format("(requested {})", phase.requested);
    out += fmt::format("{:<10}{:<8} {:<27} {:<26} {}\n", label, name(r.kind), requested, where(r),
                       details(plan, r));
    label = "";
  }
  return out;
}

std::string rope_line(const Plan& plan) {
  std::string out = fmt::format("{:<10}once, in the write; q leaves as ", "rope");
  const auto& extend = plan.phase(Phase::extend).routes;
  const auto& decode = plan.phase(Phase::decode).routes;
  if (extend.empty() || decode.empty()) return "";
  if (extend.back().q_dtype == decode.back().q_dtype) {
    return out + fmt::format("{}\n", name(extend.back().q_dtype));
  }
  return out + fmt::format("{} for extend, {} for decode\n", name(extend.back().q_dtype),
                           name(decode.back().q_dtype));
}

// The lines of caches, phases and RoPE.
std::string group_lines(const Plan& plan) {
  std::string out;
  for (const CachePlan& c : plan.caches) out += cache_line(plan, c);
  out += phase_lines(plan, plan.phase(Phase::extend));
  out += phase_lines(plan, plan.phase(Phase::decode));
  std::string as_decode;
  for (Phase p : {Phase::verify, Phase::draft_extend}) {
    if (same_routes(plan.phase(p), plan.phase(Phase::decode))) {
      as_decode += fmt::format("{}{}", as_decode.empty() ? "" : ", ", name(p));
    } else {
      out += phase_lines(plan, plan.phase(p));
    }
  }
  if (!as_decode.empty()) out += as_decode + " as decode\n";
  return out + rope_line(plan);
}

std::string budget_line(const std::vector<Budget>& budgets) {
  std::string out = fmt::format("{:<10}", "budgets");
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    const Budget& b = budgets[i];
    out += fmt::format("{}{} {}", i == 0 ? "" : " · ", meaning(b.kind), human_bytes(b.bytes));
  }
  return out + "\n";
}

std::string rows_line(std::span<const Plan> plans) {
  std::int64_t bound = 0;
  for (const Plan& plan : plans) {
    for (const PhasePlan& p : plan.phases) {
      if (p.routes.empty() || p.routes.back().max_rows == 0) continue;
      bound = bound == 0 ? p.routes.back().max_rows : std::min(bound, p.routes.back().max_rows);
    }
  }
  return fmt::format("{:<10}", "rows") +
         (bound == 0 ? "no bound\n" : fmt::format("at most {} in a step\n", grouped(bound)));
}

std::string drafts_line(const Plan& plan) {
  if (plan.draft_tokens == 0) return {};
  return fmt::format("{:<10}up to {} of a request, {} rows in a verify step\n", "drafts",
                     plan.draft_tokens, grouped(plan.max_requests * (1 + plan.draft_tokens)));
}

std::string table_lines(const Plan& plan) {
  std::string out;
  if (plan.prefixes.on) {
    out += fmt::format(
        "{:<10}pages that requests of decode steps share are read once, in up to {} groups "
        "({} levels)\n",
        "shared", kPrefixGroups, kPrefixLevels);
  }
  if (plan.table_multiple > 1) {
    out += fmt::format("{:<10}padded to a multiple of {} pages\n", "tables", plan.table_multiple);
  }
  for (const std::string& note : plan.notes) out += fmt::format("{:<10}{}\n", "chosen", note);
  return out;
}

// What prompts that are shared up to a boundary cost.
std::string boundary_line(const ModelPlan& plan) {
  if (plan.boundary_bytes == 0) return "";
  return fmt::format("{:<10}{} kept inside shared prompts, at most {} of the cache and of states\n",
                     "prefixes", plan.kept_boundaries(), human_bytes(plan.boundary_bytes));
}

}  // namespace

std::string grouped(std::int64_t n) {
  std::string digits = fmt::format("{}", n);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string explain_rules() {
  std::string out;
  for (Rule r : enum_values<Rule>()) out += fmt::format("{:<14}{}\n", name(r), meaning(r));
  return out;
}

std::string explain_kinds() {
  std::string out;
  for (KernelKind k : enum_values<KernelKind>()) {
    out +=
        fmt::format("{:<9}reads {}\n{:<9}elsewhere {}\n", name(k), meaning(k), "", other_names(k));
  }
  return out;
}

// The arithmetic over all layouts that the kernel reads: "bf16, fp8".
std::string arithmetics(const Capability& c) {
  EnumSet<Arithmetic> all =
      c.layouts.empty() ? EnumSet<Arithmetic>{c.arithmetic} : EnumSet<Arithmetic>{};
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (c.layouts.contains(kind)) all.insert(c.arithmetic_on(CacheLayout(kind)));
  }
  return all.names();
}

std::string explain_kernels(const Registry& registry) {
  std::string out;
  for (const Kernel& k : registry.kernels()) {
    const Capability& c = k.capability;
    std::string reads = c.layouts.names();
    if (c.compact_rows) {
      reads +=
          fmt::format("{}{} rows by adapter", reads.empty() ? "" : ", ", name(c.compact_layout));
    }
    out += fmt::format(
        "{}\n  phases {}; reads {}{}\n  {} arithmetic; heads {}; page sizes {}; top-k {}\n", c.name,
        c.phases.names(), reads, c.homogeneous_only ? ", homogeneous only" : "", arithmetics(c),
        c.heads.text(), c.page_sizes.text(), c.top_k.text());
  }
  return out;
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::int64_t kKiB = 1024;
  if (bytes < 100 * kKiB) return grouped(bytes) + " B";
  if (bytes < kKiB * kKiB) return fmt::format("{} KiB", bytes / kKiB);
  if (bytes < kKiB * kKiB * kKiB) return fmt::format("{} MiB", bytes / (kKiB * kKiB));
  const double gib = static_cast<double>(bytes) / (kKiB * kKiB * kKiB);
  return gib < kKiB ? fmt::format("{:.1f} GiB", gib) : fmt::format("{:.1f} TiB", gib / kKiB);
}

std::string explain(const Plan& plan) {
  return group_lines(plan) + budget_line(plan.budgets) + rows_line(std::span(&plan, 1)) +
         drafts_line(plan) + table_lines(plan);
}

std::string explain(const ModelPlan& plan) {
  std::string out = explain_ranks(plan.ranks, plan.bytes_per_token());
  if (plan.plain()) return out + explain(plan.groups.front().plan) + boundary_line(plan);
  std::vector<Plan> plans;
  for (const GroupPlan& g : plan.groups) {
    out += fmt::format("{:<10}{}, {}", "group", g.group.name, layers_text(g.group.layers));
    out += window_text(g.plan.problem);
    const std::string state =
        g.group.state_bytes > 0
            ? fmt::format(", state {} B per request and layer in {} slots",
                          grouped(g.group.state_bytes), grouped(plan.state_slots))
            : "";
    out += g.group.delta
               ? fmt::format("\n{:<10}{}{}", "delta", layers_text(g.group.delta->layers), state)
               : state;
    out += "\n" + group_lines(g.plan) + table_lines(g.plan);
    plans.push_back(g.plan);
  }
  return out + budget_line(plan.budgets) + rows_line(plans) + drafts_line(plans.front()) +
         boundary_line(plan);
}

std::string kinds(const Plan& plan, Phase phase) {
  std::vector<std::string_view> names;
  for (const Route& r : plan.phase(phase).routes) {
    if (std::find(names.begin(), names.end(), name(r.kind)) == names.end()) {
      names.push_back(name(r.kind));
    }
  }
  return fmt::format("{}", fmt::join(names, "/"));
}

std::string summary(const Plan& plan) {
  return fmt::format("{} prefill, {} decode over {}, page {}", kinds(plan, Phase::extend),
                     kinds(plan, Phase::decode), plan.main().layout.name(), plan.main().page_size);
}

std::string summary(const ModelPlan& plan) {
  std::vector<std::string> parts;
  bool equal = true;
  for (const GroupPlan& g : plan.groups) {
    parts.push_back(summary(g.plan));
    equal &= parts.back() == parts.front();
  }
  if (equal) return parts.front();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = fmt::format("{}: {}", plan.groups[i].group.name, parts[i]);
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string explain(const Refusal& refusal) {
  std::string out = "refused: " + refusal.headline + "\n";
  std::size_t subject = 0;
  std::size_t field = 0;
  std::size_t wanted = 0;
  for (const Reason& r : refusal.reasons) {
    subject = std::max(subject, r.subject.size());
    field = std::max(field, r.field.size());
    wanted = std::max(wanted, r.wanted.size());
  }
  wanted = std::min<std::size_t>(wanted, 60);
  for (const Reason& r : refusal.reasons) {
    out += fmt::format("  {:<{}}   {:<{}}   wanted {:<{}}   offered {}\n", r.subject, subject,
                       r.field == r.subject ? "" : r.field, field, r.wanted, wanted, r.offered);
  }
  std::vector<std::string> ways = refusal.suggestions;
  for (const Reason& r : refusal.reasons) {
    if (r.hint.starts_with("--")) {
      if (std::ranges::find(ways, r.hint) == ways.end()) ways.push_back(r.hint);
    } else if (!r.hint.empty()) {
      out += fmt::format("  {}\n", r.hint);
    }
  }
  if (!ways.empty()) out += fmt::format("  try {}\n", fmt::join(ways, ", or "));
  return out;
}

std::string explain(const std::vector<Rejection>& rejections) {
  std::string out;
  for (const Rejection& x : rejections) {
    out += fmt::format("  {} page {}, {}: {}", x.layout, x.page_size, name(x.phase), x.kernel);
    for (const Reason& r : x.reasons) {
      out += fmt::format("; {}: wanted {}, offered {}", r.field, r.wanted, r.offered);
    }
    out += '\n';
  }
  return out;
}

}  // namespace lathe
