// What a model that does not fit is told.
#include "model/memory/fit_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/devices/all.h"
#include "model/test/published_configs.h"
#include "plan/plan_request_json.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Machine gpus(std::int32_t count) { return with_ranks(describe_machine(Device::sm90), count); }

ModelPlanResult fit(const char* name, const Machine& machine, const PlanRequest& request) {
  return fit_model(published(name), std::nullopt, machine, request, model_kernels(machine.device));
}

// A rule or the plan of one group knows neither the weights nor what other groups are refused for.
TEST(FitModel, SuggestsOnlyWhatFits) {
  const auto check = [](const char* name, const Machine& machine, auto change) {
    PlanRequest request;
    request.context_length = 8192;
    change(request);
    const auto plan = fit(name, machine, request);
    EXPECT_FALSE(plan.ok()) << name;
    const Refusal refusal = plan ? Refusal() : plan.error();
    std::vector<std::string> ways = refusal.suggestions;
    for (const Reason& r : refusal.reasons) {
      if (r.hint.starts_with("--")) ways.push_back(r.hint);
    }
    for (const std::string& way : ways) {
      const auto changed = with_flags(request, way);
      EXPECT_TRUE(changed && fit(name, machine, *changed).ok()) << name << ": " << way;
    }
    return ways;
  };
  const auto many_tokens = [](PlanRequest& r) { r.max_total_tokens = 999'999'999'999; };
  EXPECT_THAT(check("qwen3-32b", gpus(1), many_tokens),
              ElementsAre(HasSubstr("--max-total-tokens ")));
  check("qwen3-32b", gpus(8), [&](PlanRequest& r) {
    many_tokens(r);
    r.tp = 8;
  });
  check("llama-3.1-70b", gpus(1), many_tokens);
  check("kimi-k2", gpus(4), [&](PlanRequest& r) {
    many_tokens(r);
    r.tp = 4;
  });
  check("deepseek-v3.2", gpus(1), [](PlanRequest& r) { r.layout = "gqa_fp8"; });
  const Machine reference = describe_machine(Device::ref);
  EXPECT_THAT(
      check("deepseek-v4-flash", reference, [](PlanRequest& r) { r.separate_prefixes = true; }),
      ElementsAre());
}

}  // namespace
}  // namespace lathe
