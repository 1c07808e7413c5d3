// Activations: forward passes take what was planned, and sizes that do not fit are rejected with
// ones that do.
#include "model/memory/activations.h"

#include <functional>

#include "model/memory/fit_model.h"
#include "model/test/test_util.h"
#include "plan/budget.h"
#include "plan/explain.h"

namespace lathe {
namespace {

using testing::HasSubstr;

PlanRequest request_of(std::int64_t rows) {
  PlanRequest request;
  request.chunked_prefill_size = request.context_length = rows;
  request.max_running_requests = ModelRunner::kRequests;
  return request;
}

ModelConfig config_of(const std::string& name) { return *load_model_config(fixture_dir(name)); }

// The fixture's model made wider, so that rows and not fixed sizes dominate its memory.
ModelConfig widened(ModelConfig c) {
  c.hidden *= 4;
  c.ffn *= 4;
  c.vocab = std::min(c.vocab, 512);
  return c;
}

// The kernel of shared index keys makes 512 elements at most.
TEST(FitModel, RefusesIndexKeysThatTheGpuCannotMake) {
  ModelConfig config = config_of("glm5_next");
  config.groups.front().problem.index_dim = 512;
  const auto reason = [&](Device device) {
    const auto plan = fit_model(config, std::nullopt, describe_machine(device), request_of(64),
                                model_kernels(device));
    return plan ? std::string() : plan.error().reasons.front().field;
  };
  EXPECT_NE(reason(Device::sm90), "index_head_dim");
  config.groups.front().problem.index_dim = 528;
  EXPECT_EQ(reason(Device::sm90), "index_head_dim");
  EXPECT_EQ(reason(Device::cpu), "");
}

TEST(Activations, AreWhatAForwardPassTakes) {
  for (const char* name : {"deepseek_v3",
                           "deepseek_v32",
                           "deepseek_v3_dense",
                           "deepseek_v3_fp8",
                           "deepseek_v4",
                           "deepseek_v4_fp8",
                           "gemma3_new",
                           "gemma4_moe",
                           "glm_moe_dsa",
                           "gpt_oss_bf16",
                           "llama",
                           "qwen2_window",
                           "qwen3_moe",
                           "qwen3_5_moe",
                           "qwen3_next",
                           "kimi_linear",
                           "bailing_hybrid",
                           "hy_v4",
                           "axk2",
                           "glm5_next",
                           "gemma4_shared",
                           "llama4"}) {
    const ModelConfig config = widened(config_of(name));
    const auto model = make_dummy_model(config, {});
    ASSERT_TRUE(model) << name;
    for (const char* prefill : {"auto", "inplace"}) {
      ModelRunner runner(**model, {.prefill = prefill, .threads = 2});
      std::vector<std::int32_t> prompt(ModelRunner::kContext);
      for (std::size_t i = 0; i < prompt.size(); ++i) {
        prompt[i] = static_cast<std::int32_t>(i) % config.vocab;
      }
      runner.prompt(0, prompt);
      PlanRequest request = request_of(ModelRunner::kContext);
      request.prefill = prefill;
      Machine machine = describe_machine(Device::cpu);
      machine.processors = 2;
      const auto plan = fit_model(config, std::nullopt, machine, request, all_kernels());
      ASSERT_TRUE(plan) << name;
      std::int64_t planned = plan->budget(BudgetKind::activations)->bytes;
      if (const Budget* b = plan->budget(BudgetKind::top_k_rows)) planned += b->bytes;
      const std::int64_t used = runner.arena().high_water();
      EXPECT_LE(used, planned) << name << ", " << prefill;
      // The test's steps have no decode rows, and small products pack less.
      EXPECT_LE(planned, 2 * used + (2 << 20)) << name << ", " << prefill;
    }
  }
}

TEST(Activations, AreTiledToTheirBudget) {
  const ModelConfig config = config_of("deepseek_v3");
  const Machine machine = describe_machine(Device::cpu);
  PlanRequest request = request_of(512);
  const auto budget_of = [&]() -> Result<Budget, Refusal> {
    const auto plan = fit_model(config, std::nullopt, machine, request, all_kernels());
    if (!plan) return plan.error();
    return *plan->budget(BudgetKind::activations);
  };
  const Budget whole = *budget_of();
  EXPECT_EQ(whole.tile_rows, 0);
  request.activations_budget = whole.bytes;
  EXPECT_EQ(*budget_of(), whole);
  request.activations_budget = whole.bytes - 1;
  const Budget tiled = *budget_of();
  EXPECT_EQ(tiled.tile_rows, 511);
  EXPECT_LT(tiled.bytes, whole.bytes);

  request.activations_budget = whole.bytes - 512 * (whole.bytes - tiled.bytes) - 1;
  const auto refused = budget_of();
  ASSERT_FALSE(refused);
  const Reason& reason = refused.error().reasons.at(0);
  EXPECT_EQ(reason.rule, Rule::budget);
  EXPECT_EQ(reason.field, "--activations-budget");
  // The proposed size fits.
  const std::string chunk = refused.error().suggestions.at(0);
  ASSERT_THAT(chunk, HasSubstr("--chunked-prefill-size "));
  request.chunked_prefill_size = std::stoll(chunk.substr(chunk.find(' ')));
  EXPECT_GT(request.chunked_prefill_size, 256);
  EXPECT_TRUE(budget_of());
}

// Weights, buffers and the smallest cache are checked against the machine's memory.
TEST(PlanModel, FitsTheMachine) {
  const ModelConfig config = config_of("deepseek_v32");
  Machine machine = describe_machine(Device::cpu);
  const PlanRequest request = request_of(512);
  const auto plan = fit_model(config, std::nullopt, machine, request, all_kernels());
  ASSERT_TRUE(plan);
  const std::int64_t weights = weight_bytes(config, std::nullopt, expands(*plan));
  const auto subject = [&](std::int64_t memory, std::optional<std::int64_t> stored) {
    machine.memory_bytes = memory;
    const auto again = fit_model(config, stored, machine, request, all_kernels());
    return again ? "fits" : again.error().reasons.at(0).subject;
  };
  const std::int64_t cache = cache_bytes(plan->groups.front().plan, plan->block_tokens);
  const std::int64_t least = weights + plan->buffer_bytes() + cache;
  EXPECT_EQ(subject(least, std::nullopt), "fits");
  EXPECT_EQ(subject(least - 1, std::nullopt), "cache");
  EXPECT_EQ(subject(least - cache - 1, std::nullopt), "weights and buffers");
  EXPECT_EQ(subject(least, least), "weights and buffers");
  EXPECT_EQ(subject(1 << 20, std::nullopt), "buffers");
}

TEST(PlanModel, RefusesWhereOperatorsAreMissing) {
  ModelConfig config = config_of("deepseek_v4_wide");
  const auto plan = [&] {
    return fit_model(config, std::nullopt, describe_machine(Device::sm90), request_of(512),
                     model_kernels(Device::sm90));
  };
  EXPECT_TRUE(plan());
  config.hyper.streams = 2;
  const auto refused = plan();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reasons.at(0).rule, Rule::device);
  EXPECT_EQ(refused.error().reasons.at(0).field, "hc_mult");
  EXPECT_EQ(refused.error().reasons.at(0).hint, "--device cpu");
}

TEST(PlanModel, RefusesADeltaRuleThatTheGpuHasNot) {
  const auto reason_of = [](const std::function<void(DeltaRuleProblem&)>& change) -> std::string {
    ModelConfig config = config_of("qwen3_5_moe");
    change(config.delta.problem);
    const auto plan = fit_model(config, std::nullopt, describe_machine(Device::sm90),
                                request_of(512), model_kernels(Device::sm90));
    return plan ? "legal" : plan.error().reasons.at(0).field;
  };
  EXPECT_EQ(reason_of([](DeltaRuleProblem&) {}), "legal");
  EXPECT_THAT(reason_of([](DeltaRuleProblem& p) { p.dk = 144; }), HasSubstr("key heads"));
  EXPECT_THAT(reason_of([](DeltaRuleProblem& p) { p.dv = 256; }), HasSubstr("value heads"));
  EXPECT_THAT(reason_of([](DeltaRuleProblem& p) { p.conv = 3; }), HasSubstr("taps"));
}

// Llama 4, but for heads as wide as published ones: each group of layers gets pages of its own
// size.
TEST(PlanModel, ChunksOnAGpuAreWholePages) {
  const auto plan_of = [](std::int32_t chunk) {
    ModelConfig config = config_of("llama4_chunks");
    for (LayerGroupConfig& group : config.groups) {
      group.problem.head_dim = group.problem.v_head_dim = 128;
      if (group.problem.chunked) group.problem.window = chunk;
    }
    return fit_model(config, std::nullopt, describe_machine(Device::sm90), request_of(256),
                     model_kernels(Device::sm90));
  };
  for (const std::int32_t chunk : {16, 48, 64, 8192}) {
    const auto plan = plan_of(chunk);
    ASSERT_TRUE(plan) << explain(plan.error());
    for (const GroupPlan& g : plan->groups) {
      EXPECT_EQ(g.plan.problem.chunked ? chunk % g.plan.main().page_size : 0, 0) << chunk;
    }
  }
  const auto refused = plan_of(40);
  ASSERT_FALSE(refused);
  EXPECT_THAT(explain(refused.error()), HasSubstr("tokens of a chunk"));
}

// A loaded model needs the bytes that weight_bytes() predicts.
TEST(PlanModel, WeightsTakeWhatWasPlanned) {
  for (const char* name :
       {"deepseek_v3", "deepseek_v3_fp8", "deepseek_v4", "deepseek_v4_fp8", "llama", "gpt_oss",
        "gemma3_new", "qwen3_5_moe", "kimi_linear", "llama4"}) {
    const ModelConfig config = config_of(name);
    for (const bool expansion : {false, true}) {
      LoadOptions options;
      options.expansion = expansion;
      const auto model = make_dummy_model(config, options);
      ASSERT_TRUE(model) << name;
      const auto planned = static_cast<double>(weight_bytes(config, std::nullopt, expansion));
      // Except for block scales.
      EXPECT_NEAR(planned / static_cast<double>((*model)->weight_bytes()), 1, 0.07) << name;
    }
  }
}

}  // namespace
}  // namespace lathe
