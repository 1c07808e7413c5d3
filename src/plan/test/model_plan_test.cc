#include "plan/model_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "plan/budget.h"
#include "plan/explain.h"
#include "plan/plan_json.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A kernel for grouped queries with pages of 16, 32 or 64 tokens.
Registry kernels(bool window = true) {
  Capability c;
  c.name = "k";
  c.devices = {Device::cpu};
  c.problems = {ProblemKind::grouped_query};
  c.phases = EnumSet<Phase>::all();
  c.layouts = {LayoutKind::gqa_bf16};
  c.page_sizes = Accepts::list({16, 32, 64});
  c.heads = Accepts::any();
  c.window = window;
  c.split_kv = true;
  Registry r;
  r.add(Kernel{c, nullptr});
  return r;
}

std::vector<std::int32_t> every(std::int32_t step, std::int32_t from, std::int32_t end) {
  std::vector<std::int32_t> out;
  for (std::int32_t l = from; l < end; l += step) out.push_back(l);
  return out;
}

// Twelve full layers and twelve with a window, alternating.
std::vector<LayerGroup> two_groups() {
  std::vector<LayerGroup> groups{{"full", gqa_problem(64, 8, 64), every(2, 1, 24), 0},
                                 {"window", gqa_problem(64, 8, 64), every(2, 0, 24), 0}};
  groups[1].problem.window = 128;
  return groups;
}

PlanRequest small_request() {
  PlanRequest request;
  request.page_size = 16;
  request.context_length = 4096;
  request.chunked_prefill_size = 512;
  request.max_running_requests = 8;
  return request;
}

const Machine kCpu = describe_machine(Device::cpu);

TEST(ModelPlan, OneGroupIsItsPlan) {
  std::vector<LayerGroup> groups = two_groups();
  groups.resize(1);
  const auto model = make_model_plan(groups, kCpu, small_request(), kernels());
  ASSERT_TRUE(model) << explain(model.error());
  PlanRequest request = small_request();
  request.layers = 12;
  const PlanResult plan = make_plan(groups[0].problem, kCpu, request, kernels());
  ASSERT_TRUE(plan);
  EXPECT_EQ(model->groups[0].plan, *plan);
  EXPECT_EQ(model->budgets, plan->budgets);
  EXPECT_EQ(explain(*model), explain(*plan));
  EXPECT_EQ(summary(*model), summary(*plan));
  EXPECT_EQ(to_json(*model), to_json(*plan));
  EXPECT_EQ(model->bytes_per_token(), plan->bytes_per_token());
}

TEST(ModelPlan, SharesScratchAndAddsUpWhatEachGroupKeeps) {
  const auto model = make_model_plan(two_groups(), kCpu, small_request(), kernels());
  ASSERT_TRUE(model) << explain(model.error());
  ASSERT_EQ(model->groups.size(), 2u);
  EXPECT_EQ(model->layers(), 24);
  EXPECT_EQ(model->block_tokens, 16);
  const Plan& full = model->groups[0].plan;
  const Plan& window = model->groups[1].plan;
  const auto of = [](const auto& plan, BudgetKind kind) { return plan.budget(kind)->bytes; };
  EXPECT_EQ(of(*model, BudgetKind::split_partials), of(full, BudgetKind::split_partials));
  EXPECT_EQ(of(*model, BudgetKind::step),
            of(full, BudgetKind::step) + of(window, BudgetKind::step));
  // K and V of 8 heads of 64 in bf16, in 12 layers: a window does not grow with the tokens.
  EXPECT_EQ(model->bytes_per_token(), 2 * 8 * 64 * 2 * 12);
}

TEST(ModelPlan, PrintsItsGroups) {
  std::vector<LayerGroup> groups = two_groups();
  groups[1].state_bytes = 4096;
  const auto model = make_model_plan(groups, kCpu, small_request(), kernels());
  ASSERT_TRUE(model);
  const std::string text = explain(*model);
  EXPECT_THAT(text, HasSubstr("group     full, 12 layers: 1, 3, 5, 7, ..., 23\n"));
  EXPECT_THAT(text, HasSubstr("group     window, 12 layers: 0, 2, 4, 6, ..., 22, window 128, state "
                              "4,096 B per request and layer in 34 slots\n"));
  EXPECT_EQ(summary(*model), "inplace prefill, inplace decode over gqa_bf16, page 16");
  const auto json = to_json(*model);
  EXPECT_EQ(json["groups"][1]["name"], "window");
  EXPECT_EQ(json["groups"][1]["layers"].size(), 12u);
  EXPECT_EQ(json["groups"][1]["plan"], to_json(model->groups[1].plan));
  EXPECT_EQ(json["state_slots"], 34);
  // Four slots for each of 8 requests and one for each of two kept boundaries, in 12 layers.
  EXPECT_EQ(model->budget(BudgetKind::compressor_state)->bytes, 4096 * 12 * (4 * 8 + 2));
  // The 127 tokens before a boundary are 8 pages of 32 KiB.
  EXPECT_EQ(json["kept_boundaries"], 2);
  EXPECT_EQ(json["boundary_bytes"], 2 * 12 * (8 * 32768 + 4096));
  EXPECT_THAT(text,
              HasSubstr("prefixes  2 kept inside shared prompts, at most 6 MiB of the cache"));
}

TEST(ModelPlan, LayersThatShareASelectionHaveNoIndexCache) {
  Capability c;
  c.name = "sparse";
  c.devices = {Device::cpu};
  c.problems = {ProblemKind::sparse_latent};
  c.phases = EnumSet<Phase>::all();
  c.layouts = {LayoutKind::mla_bf16};
  c.page_sizes = Accepts::list({16});
  c.heads = Accepts::any();
  Registry sparse;
  sparse.add(Kernel{c, nullptr});
  std::vector<LayerGroup> groups{{"all", deepseek_v32_problem(), every(1, 0, 6), 0}};
  const auto own = make_model_plan(groups, kCpu, small_request(), sparse);
  ASSERT_TRUE(own) << explain(own.error());
  EXPECT_EQ(own->bytes_per_token(), 6 * 1152 + 6 * 132);
  EXPECT_THAT(explain(*own), Not(HasSubstr("selection the others share")));
  groups[0].index_layers = {0, 4};
  const auto shared = make_model_plan(groups, kCpu, small_request(), sparse);
  ASSERT_TRUE(shared) << explain(shared.error());
  EXPECT_EQ(shared->bytes_per_token(), 6 * 1152 + 2 * 132);
  EXPECT_EQ(cache_bytes(shared->groups[0].plan, 1000), 63 * 16 * (6 * 1152 + 2 * 132));
  EXPECT_THAT(explain(*shared), HasSubstr("in 2 of 6 layers, whose selection the others share"));
  EXPECT_EQ(to_json(*shared)["index_layers"], 2);
}

TEST(ModelPlan, RefusesAGroupByName) {
  const auto refused = make_model_plan(two_groups(), kCpu, small_request(), kernels(false));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().headline, HasSubstr("group window (12 layers: 0, 2, 4, 6, ..., 22)"));
  EXPECT_EQ(refused.error().reasons.at(0).rule, Rule::window);
  std::vector<LayerGroup> alone = two_groups();
  alone.erase(alone.begin());
  const auto one = make_model_plan(alone, kCpu, small_request(), kernels(false));
  ASSERT_FALSE(one);
  EXPECT_THAT(one.error().headline, Not(HasSubstr("group window")));
}

// Caches and buffers of all groups together must fit the machine.
TEST(ModelPlan, FitsTheMemoryAsAWhole) {
  PlanRequest request = small_request();
  request.max_total_tokens = 100000;
  Machine small = kCpu;
  const auto plenty = make_model_plan(two_groups(), small, request, kernels());
  ASSERT_TRUE(plenty);
  const auto bytes = [&](std::int64_t tokens) {
    std::int64_t sum = plenty->buffer_bytes();
    for (const GroupPlan& g : plenty->groups) sum += cache_bytes(g.plan, tokens);
    return sum;
  };
  small.memory_bytes = bytes(100000);
  EXPECT_TRUE(make_model_plan(two_groups(), small, request, kernels()));
  small.memory_bytes -= 1;
  const auto refused = make_model_plan(two_groups(), small, request, kernels());
  ASSERT_FALSE(refused);
  ASSERT_EQ(refused.error().reasons.size(), 1u);
  EXPECT_EQ(refused.error().reasons[0].rule, Rule::memory);
  EXPECT_EQ(refused.error().reasons[0].hint, "--max-total-tokens 99984");
  request.max_total_tokens = 99984;
  EXPECT_TRUE(make_model_plan(two_groups(), small, request, kernels()));
}

TEST(ModelPlan, AWindowNeedsNoMoreThanItsRequestsHold) {
  const auto model = make_model_plan(two_groups(), kCpu, small_request(), kernels());
  ASSERT_TRUE(model);
  const Plan& window = model->groups[1].plan;
  // 127 tokens and up to 15 after the boundary are on 10 pages at most; the rows are on one more
  // than 512 / 16.
  EXPECT_EQ(window_pages(window, 16, 1, 512), 10 + 1 + 32);
  EXPECT_EQ(window_pages(window, 16, 8, 512), 8 * (10 + 1) + 32);
  EXPECT_EQ(cache_bytes(window, 1 << 20), cache_bytes(window, 1 << 25));
  EXPECT_EQ(kept_tokens(gqa_problem()), 0);
}

TEST(ModelPlan, LayersAsText) {
  EXPECT_EQ(layers_text(std::vector{4}), "layer 4");
  EXPECT_EQ(layers_text(every(1, 0, 61)), "61 layers: 0-60");
  EXPECT_EQ(layers_text(std::vector{0, 1, 2, 4, 5}), "5 layers: 0-2, 4-5");
  EXPECT_EQ(layers_text(every(2, 0, 12)), "6 layers: 0, 2, 4, 6, 8, 10");
  EXPECT_EQ(layers_text(every(2, 0, 24)), "12 layers: 0, 2, 4, 6, ..., 22");
}

}  // namespace
}  // namespace lathe
