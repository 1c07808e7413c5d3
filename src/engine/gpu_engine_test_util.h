// An engine with a model and a cache on the CUDA backend: what its tests on a GPU and those on the
// emulated one share.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/gpu_model_checks.h"
#include "model/plan_model.h"

namespace lathe {

class GpuSetup {
 public:
  struct Sizes {
    std::int64_t context = 128;
    std::int64_t cache_tokens = 16 * 64;
    std::int64_t requests = 6;
    bool plain_products = false;
  };

  GpuSetup(const std::string& directory, const Sizes& sizes, const EngineOptions& options)
      : sizes_(sizes), backend_(cuda::make_cuda_backend(sizes.plain_products).value()) {
    LoadOptions load;
    load.backend = backend_.get();
    load.expansion = false;
    model_ = load_model(directory, load).value();
    PlanRequest wanted;
    wanted.layout = config().latent() ? "mla_bf16" : "gqa_bf16";
    wanted.page_size = 64;
    wanted.chunked_prefill_size = wanted.context_length = sizes.context;
    wanted.max_running_requests = sizes.requests;
    const auto plan = plan_model(model_->config(), std::nullopt, describe_machine(Device::sm90),
                                 wanted, registry_);
    EXPECT_TRUE(plan.ok());
    plan_ = *plan;
    tensors_.emplace(backend_->memory());
    tensors_->reserve(tensor_bytes(plan_));
    EXPECT_TRUE(backend_->reserve(plan_.budgets).ok());
    cache_.emplace(
        KvCache::create(plan_, pool_sizes(plan_, sizes.cache_tokens), backend_->memory()).value());
    OpsContext ops;
    ops.backend = backend_.get();
    ops.precision = MatmulPrecision::bf16;
    ops.tensors = &*tensors_;
    ops.control = &control_;
    engine_.emplace(Engine::create(*model_, *cache_, options, ops).value());
  }
  Engine& engine() { return *engine_; }
  const ModelConfig& config() const { return model_->config(); }
  const Arena& tensors() const { return *tensors_; }
  const ModelPlan& plan() const { return plan_; }
  // What the plan says of all but the driver's own, which the fake runtime does not count.
  std::int64_t planned_bytes() const {
    return model_->weight_bytes() +
           static_cast<std::int64_t>(pool_bytes(plan_, sizes_.cache_tokens)) +
           plan_.buffer_bytes() - plan_.budget(BudgetKind::graphs)->bytes -
           plan_.budget(BudgetKind::reserve)->bytes;
  }

 private:
  Sizes sizes_;
  std::unique_ptr<Backend> backend_;
  Registry registry_ = gpu_kernels();
  Arena control_;
  std::optional<Arena> tensors_;
  std::unique_ptr<Model> model_;
  ModelPlan plan_;
  std::optional<KvCache> cache_;
  std::optional<Engine> engine_;
};

struct Answers {
  std::map<std::uint64_t, std::vector<std::int32_t>> tokens;  // by request
  std::map<std::uint64_t, Logits> logits;
};

struct Prompt {
  int tokens = 0;
  std::int32_t answer = 0;  // tokens
};

/// Greedy answers to made-up prompts that arrive together, and the logits they were drawn from.
inline Answers answers_of(const std::string& directory, const GpuSetup::Sizes& sizes,
                          EngineOptions options, const std::vector<Prompt>& prompts) {
  Answers run;
  options.on_logits = [&](RequestId id, std::span<const float> row) {
    run.logits[id.value].emplace_back(row.begin(), row.end());
  };
  GpuSetup setup(directory, sizes, options);
  for (const Prompt& p : prompts) {
    Request r;
    r.prompt = some_tokens(p.tokens, setup.config().vocab);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = p.answer;
    EXPECT_TRUE(setup.engine().submit(std::move(r)).ok());
  }
  while (!setup.engine().idle()) {
    const auto report = setup.engine().step();
    if (!report) {
      ADD_FAILURE() << report.error().message();
      break;
    }
    for (const auto& t : report->tokens) run.tokens[t.request.value].push_back(t.sampled.token);
  }
  return run;
}

}  // namespace lathe
