// The planner: options by keyword to a plan or a refusal, both as JSON and as text.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <nlohmann/json.hpp>
#include <string>

#include "attn/problem_name.h"
#include "bindings.h"
#include "errors.h"
#include "kernels/devices/all.h"
#include "kernels/devices/find_machine.h"
#include "plan/explain.h"
#include "plan/model_plan.h"
#include "plan/plan_json.h"
#include "plan/plan_request_json.h"
#include "plan/planner.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

// keyword -> "str", "int" or "bool"
nb::dict keyword_types() {
  nb::dict out;
  for (const PlanRequestKey& k : plan_request_keys())
    out[nb::str(k.key.data(), k.key.size())] = std::string(k.type);
  return out;
}

// request_json: a JSON object. (legal, JSON, explanation)
nb::tuple plan(const std::string& attention, const std::string& device,
               const std::string& request_json) {
  const auto given = nlohmann::json::parse(request_json);
  PlanRequest request;
  ProblemOptions options;
  for (const auto& [key, value] : given.items())
    value_or_raise(set_in_request(key, value, request, options));
  // Internally 0 means "choose"; a caller who writes 0 has made a mistake.
  if (given.contains("page_size")) value_or_raise(check_page_size(request.page_size));
  value_or_raise(check_one_rank(request));
  const AttentionProblem problem = value_or_raise(problem_from_name(attention, options));
  const Machine machine = value_or_raise(find_machine(device));

  std::string json;
  std::string text;
  bool legal = false;
  {
    const Unlocked unlocked;
    const PlanResult result = make_plan(problem, machine, request, all_kernels());
    legal = result.ok();
    json = (legal ? to_json(*result) : to_json(result.error())).dump(2);
    text = legal ? explain(one_group(*result)) : explain(result.error());
  }
  return nb::make_tuple(legal, json, text);
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.def("plan", &plan);
  m.def("keyword_types", &keyword_types);
}

}  // namespace lathe::python
