#include "plan/prefix_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/explain.h"
#include "plan/model_plan.h"
#include "plan/plan_json.h"
#include "plan/planner.h"
#include "plan/test/described_test_kernels.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AttentionProblem llama() { return gqa_problem(32, 8, 128); }

Capability sharing() {
  Capability c = testing::able("shares");
  c.shared_prefixes = true;
  c.split_kv = true;
  c.split_bytes = 1 << 20;
  return c;
}

PlanRequest wanted() {
  PlanRequest request;
  request.separate_prefixes = false;
  request.kv_dtype = "bf16";
  return request;
}

Plan plan_of(const Capability& kernel, const PlanRequest& request,
             const AttentionProblem& problem = llama()) {
  auto plan = make_plan(problem, testing::kH200, request, testing::with(kernel));
  EXPECT_TRUE(plan.ok()) << explain(plan.error());
  return *plan;
}

TEST(PrefixSharing, Costs) {
  const Plan plan = plan_of(sharing(), wanted());
  EXPECT_TRUE(plan.prefixes.on);
  EXPECT_EQ(plan.prefixes.row_heads, 4);
  // 4096 bytes at 8.4 TB/s; 32 heads of 4 x 128 operations at 445 TFLOP/s.
  EXPECT_NEAR(static_cast<double>(plan.prefixes.key_ps), 488, 1);
  EXPECT_NEAR(static_cast<double>(plan.prefixes.row_key_ps), 37, 1);
  EXPECT_EQ(plan.prefixes.row_ps, 100'000);
  EXPECT_EQ(plan.prefixes.launch_ps, 20'000'000);
  EXPECT_THAT(explain(plan), HasSubstr("shared    pages that requests of decode steps share"));
}

// The workspace of two calls, and f32 parts of each row in its groups and on its own.
TEST(PrefixSharing, Memory) {
  const Plan on = plan_of(sharing(), wanted());
  PlanRequest off = wanted();
  off.separate_prefixes = true;
  const Plan without = plan_of(sharing(), off);
  EXPECT_EQ(without.budget(BudgetKind::split_partials)->bytes, 1 << 20);
  EXPECT_EQ(on.budget(BudgetKind::split_partials)->bytes,
            (2 << 20) + 256 * (1 + kPrefixLevels) * 32 * 129 * 4);
  EXPECT_GT(on.budget(BudgetKind::step)->bytes, without.budget(BudgetKind::step)->bytes);
}

// --disable-cascade-attn would change nothing there.
TEST(PrefixSharing, IsNotTurnedOffOnACpu) {
  PlanRequest request = wanted();
  request.separate_prefixes = true;
  const Machine cpu = describe_machine(Device::cpu);
  const auto plan = make_plan(llama(), cpu, request, testing::with(sharing()));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().reasons.at(0).field, "--disable-cascade-attn");
  EXPECT_EQ(plan.error().reasons.at(0).hint, "leave it out");
}

TEST(PrefixSharing, IsNotTurnedOffWhereItIsNot) {
  PlanRequest request = wanted();
  request.separate_prefixes = true;
  const auto refused = [&](const Capability& kernel, const AttentionProblem& problem) {
    const auto ok = check_separate_prefixes(one_group(plan_of(kernel, request, problem)), request);
    return ok ? "" : ok.error().message();
  };
  const auto said = [](const std::string& offered) {
    return "--disable-cascade-attn: wanted decode steps that read shared keys once without it, "
           "got " +
           offered + "; leave it out";
  };
  EXPECT_EQ(refused(sharing(), llama()), "");
  EXPECT_EQ(refused(testing::able("reads"), llama()), said("a kernel that reads them for each"));
  AttentionProblem wide = llama();
  wide.head_dim = wide.v_head_dim = 512;
  EXPECT_EQ(refused(sharing(), wide), said("heads of 512"));
  request.batch_invariant = true;
  EXPECT_EQ(refused(sharing(), llama()), said("--batch-invariant"));
  request.batch_invariant = false;

  // One group that shares is enough.
  const Plan shares = plan_of(sharing(), request), not_so = plan_of(sharing(), request, wide);
  EXPECT_TRUE(check_separate_prefixes(
      join_groups({{{"wide", wide, {0}}, not_so}, {{"all", llama(), {1}}, shares}}), request));
  request.max_running_requests = 1 << 14;
  EXPECT_EQ(refused(sharing(), llama()), said("parts of --max-running-requests 16384 rows"));
}

TEST(PrefixSharing, Off) {
  PlanRequest request = wanted();
  EXPECT_FALSE(plan_of(testing::able("reads"), request).prefixes.on);
  EXPECT_THAT(explain(plan_of(testing::able("reads"), request)), Not(HasSubstr("shared ")));
  request.batch_invariant = true;
  EXPECT_FALSE(plan_of(sharing(), request).prefixes.on);
  request = wanted();
  request.separate_prefixes = true;
  EXPECT_FALSE(plan_of(sharing(), request).prefixes.on);
  request = wanted();
  AttentionProblem wide = llama();
  wide.head_dim = wide.v_head_dim = 512;
  EXPECT_FALSE(plan_of(sharing(), request, wide).prefixes.on);
  request.max_running_requests = 1 << 14;  // parts of 1 GiB
  EXPECT_FALSE(plan_of(sharing(), request).prefixes.on);
}

TEST(PrefixSharing, JsonRoundTrip) {
  const Plan plan = plan_of(sharing(), wanted());
  const auto back = plan_from_json(to_json(plan).dump());
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, plan);
}

}  // namespace
}  // namespace lathe
