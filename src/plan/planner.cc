#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "plan/budget.h"
#include "plan/cost.h"
#include "plan/layout_choice.h"
#include "plan/plan_request_json.h"
#include "plan/prefix_sharing.h"
#include "plan/refuse.h"
#include "plan/rules.h"

namespace lathe {
namespace {

// Weight of a decode step when layouts are compared. A usual request has an eighth as many output
// tokens as input tokens. With the default flags that is four decode steps for each extend step.
constexpr double kDecodeStepsPerExtend = 4;

struct Rated {
  Route route;
  const Capability* kernel;
};

/// Routes of a phase over a layout, or why there are none.
struct PhaseOutcome {
  std::vector<Route> routes;
  std::vector<Reason> reasons;  // if there are no routes
  double seconds = 0;
  std::string note;
};

bool covers(const Route& r, std::int64_t rows, std::int64_t context) {
  return r.min_rows <= 1 && (r.max_rows == 0 || r.max_rows >= rows) &&
         (r.max_context == 0 || r.max_context >= context);
}

// "0.72x the estimated time of X, the next best"
std::string against(double seconds, double next_seconds, std::string_view next) {
  const std::string ratio = fmt::format("{:.2f}", seconds / next_seconds);
  if (ratio == "1.00") return fmt::format("by estimate as fast as {}, the next best", next);
  return fmt::format("{}x the estimated time of {}, the next best", ratio, next);
}

Reason bound_reason(const Rated& r, const Candidate& c) {
  const std::int64_t rows = rows_of(c.phase, c.request);
  if (r.route.max_rows != 0 && r.route.max_rows < rows) {
    const bool extend = c.phase == Phase::extend;
    const std::string_view flag = extend ? "--chunked-prefill-size" : "--max-running-requests";
    const std::int64_t fit =
        extend
            ? r.route.max_rows
            : r.route.max_rows / std::max<std::int64_t>(1, rows / c.request.max_running_requests);
    return {Rule::rows,
            subject_of(*r.kernel),
            "rows of a step",
            fmt::format("at most {}", r.route.max_rows),
            fmt::format("{}", rows),
            fmt::format("{} {}", flag, fit)};
  }
  return {Rule::context,
          subject_of(*r.kernel),
          "context",
          fmt::format("at most {} tokens", r.route.max_context),
          fmt::format("{}", c.request.context_length),
          fmt::format("--context-length {}", r.route.max_context)};
}

// The fastest route that covers all batches, and before it the bounded routes that are faster
// within their bounds.
PhaseOutcome choose_routes(const Candidate& c, std::vector<Rated> legal,
                           const BackendChoice& choice) {
  PhaseOutcome out;
  const NominalStep nominal = nominal_step(c.phase, c.request);
  for (Rated& r : legal) {
    r.route.seconds = estimate_seconds(c, *r.kernel, r.route, nominal);
    if (choice.automatic()) r.route.min_rows = r.kernel->least_rows;
  }
  std::stable_sort(legal.begin(), legal.end(), [](const Rated& a, const Rated& b) {
    return a.route.seconds < b.route.seconds;
  });

  const Rated* covering = nullptr;
  const Rated* next = nullptr;
  for (const Rated& r : legal) {
    if (!covers(r.route, rows_of(c.phase, c.request), c.request.context_length)) continue;
    if (covering == nullptr) {
      covering = &r;
    } else if (next == nullptr) {
      next = &r;
    }
  }
  if (covering == nullptr) {
    for (const Rated& r : legal) out.reasons.push_back(bound_reason(r, c));
    return out;
  }
  for (const Rated& r : legal) {
    if (covers(r.route, rows_of(c.phase, c.request), c.request.context_length)) continue;
    NominalStep within = nominal;
    if (r.route.max_rows != 0) within.rows = std::min(within.rows, r.route.max_rows);
    if (r.route.max_context != 0) within.context = std::min(within.context, r.route.max_context);
    if (estimate_seconds(c, *r.kernel, r.route, within) <
        estimate_seconds(c, *covering->kernel, covering->route, within)) {
      out.routes.push_back(r.route);
    }
  }
  out.routes.push_back(covering->route);
  out.seconds = covering->route.seconds;
  if (choice.automatic() && next != nullptr) {
    out.note =
        fmt::format("{} auto: {}, {}", name(c.phase), covering->route.kernel,
                    against(covering->route.seconds, next->route.seconds, next->route.kernel));
  }
  return out;
}

PhaseOutcome plan_phase(const Candidate& c, const BackendChoice& choice,
                        std::vector<Rejection>* rejections) {
  std::vector<Rated> legal;
  std::vector<Reason> reasons;
  for (const Kernel& k : c.registry.kernels()) {
    if (!choice.matches(k.capability)) continue;
    Verdict v = judge(c, k);
    if (v.route) {
      legal.push_back({std::move(*v.route), &k.capability});
      continue;
    }
    if (rejections != nullptr) {
      rejections->push_back(
          {std::string(c.layout.name()), c.page_size, c.phase, k.capability.name, v.reasons});
    }
    reasons.insert(reasons.end(), v.reasons.begin(), v.reasons.end());
  }
  if (legal.empty()) {
    PhaseOutcome out;
    out.reasons = std::move(reasons);
    return out;
  }
  return choose_routes(c, std::move(legal), choice);
}

// The routes of decode for a phase that should run the same kernels: a row that verifies a draft
// then has the bits of a decode row. None if one of these kernels does not serve the phase.
std::optional<PhaseOutcome> as_decode(const Candidate& c, const PhasePlan& decode) {
  PhaseOutcome out;
  const NominalStep nominal = nominal_step(c.phase, c.request);
  for (const Route& r : decode.routes) {
    Verdict v = judge(c, *r.bound.kernel);
    if (!v.route) return std::nullopt;
    v.route->seconds = estimate_seconds(c, r.bound.kernel->capability, *v.route, nominal);
    out.routes.push_back(std::move(*v.route));
  }
  const bool covered = !out.routes.empty() && covers(out.routes.back(), rows_of(c.phase, c.request),
                                                     c.request.context_length);
  return covered ? std::optional(std::move(out)) : std::nullopt;
}

class Planner {
 public:
  Planner(const AttentionProblem& problem, const Machine& machine, const PlanRequest& request,
          const Registry& registry, std::vector<Rejection>* rejections)
      : problem_(problem),
        machine_(machine),
        request_(request),
        registry_(registry),
        rejections_(rejections) {}

  PlanResult run() {
    if (auto bad = read_request())
      return refuse({std::move(*bad)}, "the request is not one that can be planned");
    const LayoutChoice choice = choose_layouts(problem_, request_);
    if (!choice.reasons.empty()) return refuse(choice.reasons, "no layout fits");

    for (const std::vector<CacheLayout>& tier : choice.tiers) {
      for (const CacheLayout& layout : tier) {
        for (std::int32_t page_size : choice.page_sizes) try_layout(layout, page_size);
      }
      if (best_) break;
    }
    if (!best_)
      return refuse(explain_outcomes(problem_, machine_, request_, registry_, outcomes_),
                    headline_of(outcomes_));

    finish(*best_, choice);
    std::vector<Reason> over = check_budgets(*best_, machine_, request_);
    if (!over.empty()) return refuse(std::move(over), "the buffers do not fit");
    return *std::move(best_);
  }

 private:
  // The reason if an option is invalid.
  std::optional<Reason> read_request() {
    const auto reason = [](const Error& e) {
      return Reason{Rule::request, e.field, e.field, e.wanted, e.offered, e.hint};
    };
    if (const auto ok = check_problem(problem_); !ok) return reason(ok.error());
    if (const auto ok = check_plan_request(request_); !ok) return reason(ok.error());
    if (request_.separate_prefixes && !is_gpu(machine_.device)) {
      return reason({ErrorCode::invalid_argument, "--disable-cascade-attn",
                     "a GPU, whose decode steps read shared keys once",
                     fmt::format("--device {}", name(machine_.device)), "leave it out"});
    }
    for (Side side : enum_values<Side>()) {
      auto choice = parse_backend(request_.backend(side), side, registry_);
      if (!choice) return reason(choice.error());
      backends_[static_cast<std::size_t>(side)] = *std::move(choice);
    }
    return std::nullopt;
  }

  bool needed(Phase phase) const {
    return phase == Phase::extend || phase == Phase::decode || request_.draft_tokens > 0;
  }

  void try_layout(const CacheLayout& layout, std::int32_t page_size) {
    Plan plan;
    double seconds = 0;
    bool legal = true;
    LayoutOutcome outcome{layout, page_size, {}};
    for (Phase phase : enum_values<Phase>()) {
      const Candidate c{problem_, machine_, request_, registry_, layout, page_size, phase};
      const Side side = side_of(phase);
      std::optional<PhaseOutcome> same;
      if (phase == Phase::verify || phase == Phase::draft_extend) {
        same = as_decode(c, plan.phase(Phase::decode));
      }
      PhaseOutcome p = same ? std::move(*same)
                            : plan_phase(c, backends_[static_cast<std::size_t>(side)], rejections_);
      if (!p.reasons.empty() || p.routes.empty()) {
        if (needed(phase)) {
          legal = false;
          outcome.failures.push_back({phase, std::move(p.reasons)});
        }
        continue;
      }
      seconds += p.seconds * (phase == Phase::extend   ? 1
                              : phase == Phase::decode ? kDecodeStepsPerExtend
                                                       : 0);
      if (!p.note.empty() && needed(phase)) plan.notes.push_back(std::move(p.note));
      plan.phase(phase).routes = std::move(p.routes);
    }
    outcomes_.push_back(std::move(outcome));
    if (!legal) return;
    const auto rated = std::find_if(rated_.begin(), rated_.end(),
                                    [&](const auto& r) { return r.first == layout.name(); });
    if (rated == rated_.end()) {
      rated_.emplace_back(layout.name(), seconds);
    } else {
      rated->second = std::min(rated->second, seconds);
    }
    if (best_ && seconds >= best_seconds_) return;
    best_seconds_ = seconds;
    plan.caches.push_back({CacheRole::main, layout, page_size, 1});
    best_ = std::move(plan);
  }

  void finish(Plan& plan, const LayoutChoice& choice) {
    plan.problem = problem_;
    plan.device = machine_.device;
    plan.context_length = request_.context_length;
    plan.layers = request_.layers;
    plan.index_layers = request_.index_layers > 0 ? request_.index_layers : request_.layers;
    plan.max_requests = request_.max_running_requests;
    plan.draft_tokens = request_.draft_tokens;
    const CachePlan main = plan.main();
    const std::int32_t entries = compressed_page_size(problem_, main.page_size);
    if (problem_.two_sources()) {
      plan.caches.push_back({CacheRole::compressed, main.layout, entries, problem_.compress_ratio});
    }
    if (problem_.index_heads > 0) {
      const CacheLayout index(LayoutKind::index_fp8, LayoutDims{.dim = problem_.index_dim});
      const std::int32_t tokens = problem_.tokens_per_index_key();
      plan.caches.push_back({CacheRole::index, index, main.page_size / tokens, tokens});
    }
    std::int64_t multiple_tokens = main.page_size;
    for (Phase phase : enum_values<Phase>()) {
      plan.phase(phase).phase = phase;
      plan.phase(phase).requested = request_.backend(side_of(phase));
      if (!plan.phase(phase).routes.empty()) {
        plan.max_rows = std::max(plan.max_rows, rows_of(phase, request_));
      }
      for (const Route& r : plan.phase(phase).routes) {
        multiple_tokens = std::lcm(multiple_tokens, std::int64_t{r.table_tokens});
      }
    }
    plan.table_multiple = static_cast<std::int32_t>(multiple_tokens / main.page_size);
    plan.prefixes = prefix_sharing(plan, machine_, request_);
    plan.budgets = budgets_for(plan, machine_, request_,
                               {plan.max_rows, plan.max_requests, plan.context_length});
    add_layout_note(plan, choice);
  }

  void add_layout_note(Plan& plan, const LayoutChoice& choice) {
    if (!choice.automatic) return;
    const auto chosen = plan.main().layout.name();
    const std::pair<std::string, double>* next = nullptr;
    for (const auto& r : rated_) {
      if (r.first != chosen && (next == nullptr || r.second < next->second)) next = &r;
    }
    std::string note = fmt::format("layout auto: {}", chosen);
    if (next != nullptr) {
      note += ", " + against(best_seconds_, next->second, next->first);
    } else if (choice.tiers.size() > 1) {
      note +=
          ", the most precise format that fits; a smaller one is chosen by name (--kv-cache-dtype)";
    } else {
      note += ", the only one that fits";
    }
    plan.notes.insert(plan.notes.begin(), std::move(note));
  }

  Refusal refuse(std::vector<Reason> reasons, std::string_view what) const {
    Refusal r;
    r.headline = fmt::format("{}: {}", what, describe_request(problem_, machine_, request_));
    r.reasons = std::move(reasons);
    return r;
  }

  const AttentionProblem& problem_;
  const Machine& machine_;
  const PlanRequest& request_;
  const Registry& registry_;
  std::vector<Rejection>* rejections_;
  std::array<BackendChoice, enum_count<Side>> backends_;
  std::vector<LayoutOutcome> outcomes_;
  std::vector<std::pair<std::string, double>> rated_;  // (layout, least seconds over page sizes)
  std::optional<Plan> best_;
  double best_seconds_ = 0;
};

// A rule's hint is written without knowledge of the other rules. Clears hints that are flags but do
// not make the request legal.
void keep_hints_that_help(const PlanRequest& request, std::vector<Reason>& reasons,
                          const std::function<bool(Device, const PlanRequest&)>& legal,
                          Device device) {
  constexpr std::string_view kDevice = "--device ";
  for (Reason& r : reasons) {
    if (!r.hint.starts_with("--")) continue;
    bool helps = false;
    if (r.hint.starts_with(kDevice)) {
      const auto other = parse_enum<Device>(std::string_view(r.hint).substr(kDevice.size()));
      helps = other && legal(*other, request);
    } else if (const auto changed = with_flags(request, r.hint)) {
      helps = legal(device, *changed);
    }
    if (!helps) r.hint.clear();
  }
}

}  // namespace

PlanResult make_plan(const AttentionProblem& problem, const Machine& machine,
                     const PlanRequest& request, const Registry& registry,
                     std::vector<Rejection>* rejections) {
  const auto attempt = [&](const Machine& m, const PlanRequest& changed) {
    return Planner(problem, m, changed, registry, nullptr).run().ok();
  };
  PlanResult result = Planner(problem, machine, request, registry, rejections).run();
  if (result) return result;
  Refusal refusal = result.error();
  const auto sizes = [](const Reason& r) { return r.rule == Rule::memory && r.hint.empty(); };
  const bool too_large = std::ranges::any_of(refusal.reasons, sizes);
  keep_hints_that_help(
      request, refusal.reasons,
      [&](Device device, const PlanRequest& changed) {
        return attempt(device == machine.device ? machine : describe_machine(device), changed);
      },
      machine.device);
  refusal.suggestions =
      too_large
          ? sizes_that_fit(request,
                           [&](const PlanRequest& changed) { return attempt(machine, changed); })
          : suggest(problem, machine, request, registry, attempt);
  return refusal;
}

}  // namespace lathe
