// Every change that a refused plan proposes gives a plan, over all kernels of this build.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/problem_name.h"
#include "kernels/devices/all.h"
#include "plan/explain.h"
#include "plan/matrix.h"
#include "plan/plan_request_json.h"
#include "plan/planner.h"

namespace lathe {
namespace {

const Registry& kernels() {
  static const Registry all = all_kernels();
  return all;
}

bool gives_a_plan(const std::string& change, const AttentionProblem& problem, Device device,
                  const PlanRequest& request) {
  if (change.starts_with("--device ")) {
    const auto other = parse_enum<Device>(change.substr(9));
    return other && make_plan(problem, describe_machine(*other), request, kernels());
  }
  const auto changed = with_flags(request, change);
  return changed && make_plan(problem, describe_machine(device), *changed, kernels());
}

// Checks a refusal, and returns the number of its proposals.
int check(const Refusal& refusal, const AttentionProblem& problem, Device device,
          const PlanRequest& request) {
  std::vector<std::string> changes = refusal.suggestions;
  for (const Reason& r : refusal.reasons) {
    if (r.hint.starts_with("-")) changes.push_back(r.hint);
  }
  for (const std::string& change : changes) {
    EXPECT_TRUE(gives_a_plan(change, problem, device, request)) << "try " << change << "\n"
                                                                << explain(refusal);
  }
  return static_cast<int>(changes.size());
}

int check(const AttentionProblem& problem, Device device, const PlanRequest& request) {
  const auto plan = make_plan(problem, describe_machine(device), request, kernels());
  return plan ? 0 : check(plan.error(), problem, device, request);
}

TEST(Suggestions, OfEveryCellOfTheMatrixGiveAPlan) {
  int checked = 0;
  for (const char* attention : {"mla", "dsa", "v4", "gqa"}) {
    const AttentionProblem problem = *problem_from_name(attention);
    for (const Device device : enum_values<Device>()) {
      SCOPED_TRACE(std::string(attention) + " on " + std::string(name(device)));
      for (const MatrixCell& cell : make_matrix(problem, describe_machine(device), {}, kernels())) {
        if (cell.result) continue;
        PlanRequest request;
        request.layout = layout_for(problem, cell.layout)->serialize();
        request.prefill = name(cell.prefill);
        request.decode = name(cell.decode);
        checked += check(cell.result.error(), problem, device, request);
      }
    }
  }
  EXPECT_GT(checked, 500);
}

TEST(Suggestions, OfOtherRequestsGiveAPlan) {
  std::vector<PlanRequest> requests;
  for (const char* layout : {"mla_fp8(nope=256)", "index_fp8", "mla_fp8(", "gqa_fp8", "v4_fp8"}) {
    requests.push_back({.layout = layout});
    requests.push_back({.decode = "ragged", .layout = layout});
  }
  for (const char* dtype : {"bf16", "fp8_e4m3", "fp4_e2m1"}) {
    for (const char* kind : {"auto", "native"}) {
      requests.push_back({.decode = kind, .kv_dtype = dtype});
    }
  }
  for (const std::int32_t page : {1, 3, 17, 100, 65536, 70000}) {
    requests.push_back({.page_size = page});
  }
  requests.push_back({.prefill = "ragged", .decode = "ragged"});
  requests.push_back({.chunked_prefill_size = 10'000'000});
  requests.push_back({.max_running_requests = 1'000'000});
  requests.push_back({.context_length = 4'000'000});
  requests.push_back({.max_total_tokens = 100'000'000});
  requests.push_back({.batch_invariant = true});
  requests.push_back({.logits_budget = 1000});
  requests.push_back({.prefill = "gather", .gather_budget = 1000});
  int checked = 0;
  for (const char* attention : {"mla", "dsa", "v4", "gqa"}) {
    for (const Device device : enum_values<Device>()) {
      for (const PlanRequest& request : requests) {
        checked += check(*problem_from_name(attention), device, request);
      }
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(Suggestions, WithFlagsReadsFlagsOfAPlanRequest) {
  const auto changed = with_flags({}, "--page-size 32 --disable-cuda-graph --kv-layout mla_fp8");
  ASSERT_TRUE(changed);
  PlanRequest want;
  want.page_size = 32;
  want.cuda_graph = false;
  want.layout = "mla_fp8";
  EXPECT_EQ(*changed, want);
  for (const char* bad : {"--page-size", "--page-size x", "--no-such-flag 1", "64", "--heads 16"}) {
    EXPECT_FALSE(with_flags({}, bad)) << bad;
  }
}

}  // namespace
}  // namespace lathe
