// An engine with a model and a cache on the CUDA backend, for the tests on a GPU and on the
// emulated one.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft/check_draft_model.h"
#include "engine/draft/model_drafter.h"
#include "engine/draft/mtp_drafter.h"
#include "engine/draft/test/draft_test_util.h"
#include "engine/engine.h"
#include "engine/runner/memory_plan.h"
#include "model/memory/fit_model.h"
#include "model/test/gpu_model_checks.h"

namespace lathe {

class GpuSetup {
 public:
  struct Sizes {
    std::int64_t context = 128;
    std::int64_t cache_tokens = 16 * 64;
    std::int64_t requests = 6;
    bool plain_products = false;
    std::int32_t draft_tokens = 0;
    bool batch_invariant = false;
    bool shared_prefixes = false;  // looked for, and groups cost nothing
    bool mtp = false;              // with drafts from the draft layer
    bool dummy = false;            // random weights
    std::string draft = {};        // directory of a draft model; both have the layout of `auto`
    std::string layout = {};       // empty: bf16
  };

  GpuSetup(const std::string& directory, const Sizes& sizes, EngineOptions options)
      : sizes_(sizes),
        backend_(cuda::make_cuda_backend({.plain_products = sizes.plain_products}).value()) {
    LoadOptions load;
    load.backend = backend_.get();
    load.expansion = false;
    load.drafts = sizes.mtp;
    load.dummy = sizes.dummy;
    model_ = load_model(directory, load).value();
    PlanRequest wanted;
    wanted.layout = config().is_mla() || config().is_compressed() ? "mla_bf16" : "gqa_bf16";
    if (!sizes.layout.empty()) wanted.layout = sizes.layout;
    wanted.page_size = config().is_compressed() ? 128 : 64;
    wanted.chunked_prefill_size = wanted.context_length = sizes.context;
    wanted.max_running_requests = sizes.requests;
    wanted.draft_tokens = sizes.draft_tokens;
    wanted.batch_invariant = sizes.batch_invariant;
    wanted.separate_prefixes = !sizes.shared_prefixes;
    Machine machine = describe_machine(Device::sm90);
    if (!sizes.draft.empty()) {
      wanted.layout = "auto";
      draft_.emplace(DraftModel{load_model(sizes.draft, load).value(), {}, {}, {}});
      const auto plan = plan_draft_model(sizes.draft, draft_->model->config(), std::nullopt,
                                         machine, wanted, registry_);
      EXPECT_TRUE(plan.ok());
      draft_->plan = *plan;
      machine = beside_draft(machine, draft_memory(), wanted);
    }
    const auto plan = fit_model(model_->config(), std::nullopt, machine, wanted, registry_);
    EXPECT_TRUE(plan.ok());
    plan_ = *plan;
    for (GroupPlan& g : plan_.groups) {
      EXPECT_EQ(g.plan.prefixes.on, sizes.shared_prefixes);
      g.plan.prefixes.row_key_ps = g.plan.prefixes.row_ps = g.plan.prefixes.launch_ps = 0;
    }
    const ModelPlan* drafting = draft_memory().plan;
    tensors_.emplace(backend_->memory());
    tensors_->reserve(
        std::max(tensor_bytes(plan_), drafting != nullptr ? tensor_bytes(*drafting) : 0));
    EXPECT_TRUE(backend_->reserve(shared_budgets(plan_, drafting)).ok());
    cache_.emplace(
        KvCache::create(plan_, pool_sizes(plan_, sizes.cache_tokens), backend_->memory()).value());
    OpsContext ops;
    ops.backend = backend_.get();
    ops.precision = MatmulPrecision::bf16;
    ops.tensors = &*tensors_;
    ops.control = &control_;
    if (sizes.batch_invariant) ops.execution.batch_invariant = true;
    ops_ = ops;
    if (sizes.mtp) {
      drafter_.emplace(MtpDrafter::create(*model_, *cache_, ops).value());
      options.drafter = &*drafter_;
      options.draft_tokens = sizes.draft_tokens;
    }
    if (draft_) {
      draft_->cache.emplace(KvCache::create(draft_->plan,
                                            pool_sizes(draft_->plan, sizes.cache_tokens),
                                            backend_->memory())
                                .value());
      draft_->drafter.emplace(ModelDrafter::create(*draft_->model, *draft_->cache,
                                                   {.prefill_rows = options.chunked_prefill_size},
                                                   ops)
                                  .value());
      options.drafter = &*draft_->drafter;
      options.draft_tokens = sizes.draft_tokens;
    }
    engine_.emplace(Engine::create(*model_, *cache_, options, ops).value());
  }
  Engine& engine() { return *engine_; }
  const Model& model() const { return *model_; }
  KvCache& cache() { return *cache_; }
  const OpsContext& ops() const { return ops_; }
  const ModelConfig& config() const { return model_->config(); }
  const Arena& tensors() const { return *tensors_; }
  const ModelPlan& plan() const { return plan_; }
  // Pages of the draft model that requests hold.
  std::int64_t held_by_drafts() const { return draft_->drafter->held_pages(); }
  // Bytes by the plans, without the driver's own memory, which the fake runtime does not count.
  std::int64_t planned_bytes() const {
    const DraftMemory draft = draft_memory();
    std::int64_t sum = model_->weight_bytes() + draft.weight_bytes +
                       static_cast<std::int64_t>(pool_bytes(plan_, sizes_.cache_tokens) +
                                                 draft.pool_bytes(sizes_.cache_tokens)) +
                       plan_.buffer_bytes() + draft.buffer_bytes(&plan_) -
                       plan_.budget(BudgetKind::graphs)->bytes -
                       plan_.budget(BudgetKind::reserve)->bytes;
    if (draft.plan != nullptr) sum -= draft.plan->budget(BudgetKind::graphs)->bytes;
    return sum;
  }

 private:
  struct DraftModel {
    std::unique_ptr<Model> model;
    ModelPlan plan;
    std::optional<KvCache> cache;
    std::optional<ModelDrafter> drafter;
  };
  DraftMemory draft_memory() const {
    if (!draft_) return {};
    return {&draft_->plan, draft_->model->weight_bytes()};
  }

  Sizes sizes_;
  std::unique_ptr<Backend> backend_;
  Registry registry_ = gpu_kernels();
  Arena control_;
  OpsContext ops_;
  std::optional<Arena> tensors_;
  std::unique_ptr<Model> model_;
  ModelPlan plan_;
  std::optional<KvCache> cache_;
  std::optional<MtpDrafter> drafter_;
  std::optional<DraftModel> draft_;
  std::optional<Engine> engine_;
};

struct Answers {
  std::map<std::uint64_t, std::vector<std::int32_t>> tokens;  // by request
  std::map<std::uint64_t, Logits> logits;
  std::map<std::uint64_t, std::vector<double>> logprobs;  // of the tokens
  std::int64_t steps_behind = 0;  // steps that started before the previous one ended
  EngineStats stats;
  std::vector<double> step_ms;
};

struct Prompt {
  int tokens = 0;
  std::int32_t answer = 0;  // tokens
  float temperature = 0;
  std::vector<std::int32_t> text = {};  // instead of made-up tokens
};

/// Submits made-up prompts together, and adds their answers and the engine's figures to `run`.
inline void submit_and_run(Engine& engine, const ModelConfig& config,
                           const std::vector<Prompt>& prompts, Answers& run) {
  for (const Prompt& p : prompts) {
    Request r;
    r.prompt = p.text.empty() ? some_tokens(p.tokens, config.vocab) : p.text;
    r.sampling.temperature = p.temperature;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = p.answer;
    r.sampling.logprobs = 0;
    EXPECT_TRUE(engine.submit(std::move(r)).ok());
  }
  while (!engine.idle()) {
    const auto start = std::chrono::steady_clock::now();
    const auto report = engine.step();
    run.step_ms.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
    if (!report) {
      ADD_FAILURE() << report.error().message();
      break;
    }
    run.steps_behind += engine.in_flight();
    for (const auto& t : report->tokens) {
      run.tokens[t.request.value].push_back(t.sampled.token);
      run.logprobs[t.request.value].push_back(*t.sampled.logprob);
    }
  }
  run.stats = engine.stats();
}

/// Answers to made-up prompts that arrive together, and the logits that they were sampled from.
inline Answers answers_of(const std::string& directory, const GpuSetup::Sizes& sizes,
                          EngineOptions options, const std::vector<Prompt>& prompts,
                          bool keep_logits = true) {
  Answers run;
  if (keep_logits) {
    options.on_logits = [&](RequestId id, std::span<const float> row) {
      run.logits[id.value].emplace_back(row.begin(), row.end());
    };
  }
  GpuSetup setup(directory, sizes, options);
  submit_and_run(setup.engine(), setup.config(), prompts, run);
  return run;
}

/// Drafts for answers_of(): right, wrong, or right half of the time, from the answers of an earlier
/// run.
enum class Guess { right, wrong, mixed };
inline ScriptedDrafter drafter_of(const Answers& known, const std::vector<Prompt>& prompts,
                                  std::int32_t vocab, Guess guess) {
  return ScriptedDrafter([=, &known, &prompts](const DraftRequest& r, std::int64_t place) {
    const auto& tokens = known.tokens.at(r.id.value);
    const std::int64_t at = place - prompts[r.id.value - 1].tokens;
    const std::int32_t token = at < std::ssize(tokens) ? tokens[static_cast<std::size_t>(at)] : 0;
    const bool right =
        guess == Guess::right || (guess == Guess::mixed && (place + at / 3) % 2 == 0);
    return right ? token : (token + 1) % vocab;
  });
}

}  // namespace lathe
