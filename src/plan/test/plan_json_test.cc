#include "plan/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/test/described_test_kernels.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;

Plan some_plan() {
  Registry kernels = testing::upstream_kernels();
  add_adapters(kernels);
  PlanRequest request;
  request.kv_dtype = "fp8_e4m3";
  request.prefill = "flashmla_sparse";
  request.decode = "trtllm";
  return *make_plan(deepseek_v32_problem(), describe_machine(Device::sm100), request, kernels);
}

TEST(PlanJson, RoundTrip) {
  Plan plan = some_plan();
  plan.phase(Phase::decode).routes[0].split_bytes = 123;
  plan.phase(Phase::decode).routes[0].worker_rows = 45;
  plan.phase(Phase::decode).routes[0].min_rows = 67;
  plan.phase(Phase::decode).routes[0].expanded_bytes = 89;
  const auto back = plan_from_json(to_json(plan).dump());
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, plan);
}

TEST(PlanJson, RefusalCarriesTheReasons) {
  const PlanResult refused =
      make_plan(deepseek_v32_problem(), describe_machine(Device::sm90), {}, Registry());
  const auto json = to_json(refused.error());
  EXPECT_FALSE(json["legal"].get<bool>());
  EXPECT_EQ(json["reasons"][0]["rule"], "device");
  EXPECT_EQ(json["reasons"][0]["offered"], "no kernels at all");
}

// Each way to damage a plan gives an error with its path.
TEST(PlanJson, BadInputNamesThePath) {
  const auto good = to_json(some_plan());
  const auto spoiled = [&](const char* pointer, nlohmann::ordered_json value) {
    auto j = good;
    j[nlohmann::ordered_json::json_pointer(pointer)] = std::move(value);
    const auto r = plan_from_json(j.dump());
    return r ? std::string("accepted") : r.error().message();
  };
  EXPECT_THAT(plan_from_json("{").error().message(), HasSubstr("wanted JSON"));
  EXPECT_THAT(plan_from_json("[]").error().message(), HasSubstr("wanted an object"));
  EXPECT_THAT(plan_from_json("{}").error().message(), HasSubstr("legal: wanted a value"));
  EXPECT_THAT(spoiled("/legal", false), HasSubstr("legal: wanted true"));
  EXPECT_THAT(spoiled("/device", "sm91"), HasSubstr("device: wanted one of ref, cpu, sm80"));
  EXPECT_THAT(spoiled("/problem/heads", 0), HasSubstr("problem.heads: wanted 1 to 128"));
  EXPECT_THAT(spoiled("/problem/heads", -1), HasSubstr("problem.heads: wanted an integer from 0"));
  EXPECT_THAT(spoiled("/problem/heads", 1.5), HasSubstr("problem.heads: wanted an integer"));
  EXPECT_THAT(spoiled("/problem/scale", "x"), HasSubstr("problem.scale: wanted a number"));
  EXPECT_THAT(spoiled("/caches", nlohmann::ordered_json::array()), HasSubstr("a main cache first"));
  EXPECT_THAT(spoiled("/caches/0/layout", "mla_fp8(nope=7)"), HasSubstr("nope of mla_fp8"));
  EXPECT_THAT(spoiled("/caches/0/page_size", 0),
              HasSubstr("caches[0].page_size: wanted an integer from 1"));
  EXPECT_THAT(spoiled("/caches/0/page_bytes", 1), HasSubstr("caches[0].page_bytes: wanted 36864"));
  EXPECT_THAT(spoiled("/phases/decode/routes/0/kind", "best"),
              HasSubstr("phases.decode.routes[0].kind: wanted one of gather"));
  EXPECT_THAT(spoiled("/phases/decode/routes/0/max_rows", 18446744073709551615u),
              HasSubstr("phases.decode.routes[0].max_rows"));
  EXPECT_THAT(spoiled("/phases/extend/routes/0/adapter/exact", 1),
              HasSubstr("wanted true or false"));
  EXPECT_THAT(spoiled("/notes/0", 3), HasSubstr("notes[0]: wanted a string"));
}

}  // namespace
}  // namespace lathe
