// The C interface's machines and plans.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "attn/problem_name.h"
#include "base/json.h"
#include "capi/handles.h"
#include "capi/json.h"
#include "capi/status.h"
#include "kernels/devices/all.h"
#include "kernels/devices/find_machine.h"
#include "plan/explain.h"
#include "plan/model_plan.h"
#include "plan/plan_json.h"
#include "plan/plan_request_json.h"
#include "plan/planner.h"

using namespace lathe;
using namespace lathe::capi;

lathe_status lathe_machine_query(const char* device, lathe_machine** machine) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{device, "device"}, {machine, "machine"}}); !ok) return ok;
    const std::string text = device;
    auto found = find_machine(text == "cuda:0" ? "cuda" : text);
    if (!found) {
      Error error = found.error();
      error.field = "device";
      return error;
    }
    const nlohmann::ordered_json json = {
        {"device", name(found->device)},       {"model", found->model},
        {"processors", found->processors},     {"block_shared_bytes", found->block_shared_bytes},
        {"memory_bytes", found->memory_bytes}, {"bytes_per_second", found->bytes_per_second},
        {"bf16_flops", found->bf16_flops},     {"fp8_flops", found->fp8_flops}};
    *machine = new lathe_machine{*std::move(found), json_text(json)};
    return {};
  });
}

void lathe_machine_free(lathe_machine* machine) { delete machine; }

const char* lathe_machine_json(const lathe_machine* machine) {
  return machine == nullptr ? nullptr : machine->json.c_str();
}

lathe_status lathe_plan_create(const char* request, const lathe_machine* machine,
                               lathe_plan** plan) {
  return guard([&]() -> lathe_status {
    const auto ok = need_all({{request, "request"}, {machine, "machine"}, {plan, "plan"}});
    if (!ok) return fail(ok.error());
    const auto object = parse_object(request, "request");
    if (!object) return fail(object.error());
    PlanRequest read;
    ProblemOptions options;
    std::string attention = "dsa";
    for (const auto& [key, value] : object->items()) {
      const auto set = key == "attention" ? set_string(key, value, attention)
                                          : set_in_request(key, value, read, options);
      if (!set) return fail(set.error());
    }
    const auto problem = problem_from_name(attention, options);
    if (!problem) return fail(in_json(problem.error()));
    if (const auto one = check_one_rank(read); !one) return fail(in_json(one.error()));
    auto made = make_plan(*problem, machine->value, read, all_kernels());
    if (!made) return fail(made.error());

    const auto json = to_json(*made);
    auto out = std::make_unique<lathe_plan>();
    out->json = json_text(json);
    out->text = explain(one_group(*made));
    for (const Phase p : enum_values<Phase>()) {
      const std::string key(name(p));
      const auto& phases = json["phases"];
      out->routes[static_cast<std::size_t>(p)] =
          phases.contains(key) ? json_text(phases[key]["routes"]) : "[]";
    }
    out->value = *std::move(made);
    *plan = out.release();
    return LATHE_OK;
  });
}

void lathe_plan_free(lathe_plan* plan) { delete plan; }

const char* lathe_plan_json(const lathe_plan* plan) {
  return plan == nullptr ? nullptr : plan->json.c_str();
}

const char* lathe_plan_text(const lathe_plan* plan) {
  return plan == nullptr ? nullptr : plan->text.c_str();
}

int32_t lathe_plan_cache_count(const lathe_plan* plan) {
  return plan == nullptr ? 0 : static_cast<int32_t>(plan->value.caches.size());
}

lathe_status lathe_plan_layout(const lathe_plan* plan, int32_t cache, lathe_layout** layout,
                               int64_t* page_size) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{plan, "plan"}, {layout, "layout"}}); !ok) return ok;
    const auto& caches = plan->value.caches;
    if (cache < 0 || cache >= std::ssize(caches)) {
      return Error{ErrorCode::out_of_range, "cache", fmt::format("0 to {}", caches.size() - 1),
                   fmt::format("{}", cache), ""};
    }
    const CachePlan& c = caches[static_cast<std::size_t>(cache)];
    *layout = new lathe_layout(c.layout);
    if (page_size != nullptr) *page_size = c.page_size;
    return {};
  });
}

lathe_status lathe_plan_route_json(const lathe_plan* plan, const char* phase, const char** json) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{plan, "plan"}, {phase, "phase"}, {json, "json"}}); !ok) return ok;
    const auto p = parse_enum<Phase>(phase);
    if (!p) {
      return Error{ErrorCode::invalid_argument, "phase", "one of " + known_names<Phase>(),
                   fmt::format("\"{}\"", phase), ""};
    }
    *json = plan->routes[static_cast<std::size_t>(*p)].c_str();
    return {};
  });
}

lathe_status lathe_plan_budget(const lathe_plan* plan, const char* budget, int64_t* bytes) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{plan, "plan"}, {budget, "name"}, {bytes, "bytes"}}); !ok) return ok;
    std::string known;
    for (const BudgetKind kind : enum_values<BudgetKind>()) {
      known += (known.empty() ? "" : ", ") + std::string(meaning(kind));
      if (meaning(kind) != budget) continue;
      const Budget* b = plan->value.budget(kind);
      *bytes = b == nullptr ? 0 : b->bytes;
      return {};
    }
    return Error{ErrorCode::invalid_argument, "name", "one of " + known,
                 fmt::format("\"{}\"", budget), ""};
  });
}
