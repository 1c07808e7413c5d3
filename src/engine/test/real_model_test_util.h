// For the engine's tests with small checkpoints: a plan with its pools, and answers that can be
// compared bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/runner/memory_plan.h"
#include "engine/test/late_backend_test_util.h"
#include "kernels/devices/all.h"
#include "model/memory/fit_model.h"
#include "model/test/generated_checkpoint.h"
#include "plan/budget.h"
#include "plan/model_plan.h"

namespace lathe {

inline std::unique_ptr<Model> load_real(const std::string& name) {
  auto model = load_model(checkpoint_dir(std::string(LATHE_TEST_DATA) + "/models/" + name), {});
  EXPECT_TRUE(model) << model.error().message();
  return std::move(*model);
}

/// Plan, pools and an OpsContext. Every page without a token is NaN.
class RealSetup {
 public:
  struct Options {
    std::string prefill = "auto", decode = "auto", layout = "auto";
    std::int32_t page_size = 16;
    std::int64_t context = 256;
    std::int64_t rows = 0;       // of the largest step; 0: the context
    std::int64_t tokens = 0;     // size of the pool; 0: one context
    std::int64_t requests = 32;  // most running requests
    bool planned_pools = false;  // pools as in a runtime: windows get only what the plan says
    std::int64_t gather_budget = std::int64_t{1} << 22;
    std::int64_t activations_budget = 0;
    std::int32_t draft_tokens = 0;  // drafts that states have room for
    int threads = 1;
    bool late = false;  // on a LateBackend
  };

  RealSetup(const Model& model, const Options& options)
      : model_(&model), registry_(all_kernels()), threads_(options.threads) {
    PlanRequest request;
    request.prefill = options.prefill;
    request.decode = options.decode;
    request.layout = options.layout;
    request.page_size = options.page_size;
    request.context_length = options.context;
    request.chunked_prefill_size = options.rows > 0 ? options.rows : options.context;
    request.max_running_requests = options.requests;
    request.draft_tokens = options.draft_tokens;
    request.gather_budget = options.gather_budget;
    request.logits_budget = std::int64_t{1} << 22;
    request.activations_budget = options.activations_budget;
    const ModelPlanResult plan =
        fit_model(model.config(), std::nullopt, describe_machine(Device::cpu), request, registry_);
    EXPECT_TRUE(plan.ok()) << (plan
                                   ? ""
                                   : plan.error().headline + ": " + plan.error().reasons[0].wanted);
    plan_ = *plan;
    const std::int64_t tokens = options.tokens > 0 ? options.tokens : options.context;
    std::vector<PoolSize> sizes;
    for (const GroupPlan& g : plan_.groups) {
      sizes.push_back({.budget_bytes = 0, .pages = pages_for(tokens, g.plan.main().page_size)});
    }
    for (const GroupPlan& g : plan_.groups) {
      if (!g.plan.problem.two_sources()) continue;
      sizes.push_back({.budget_bytes = 0, .pages = pages_for(tokens, entry_page_tokens(g.plan))});
    }
    if (options.planned_pools) sizes = pool_sizes(plan_, tokens);
    cache_.emplace(*KvCache::create(plan_, sizes));
    cache_->poison_free();
    ops_.execution.threads = &threads_;
    ops_.execution.scratch = &scratch_;
    if (options.late) backend_ = std::make_unique<LateBackend>();
    ops_.backend = backend_.get();
    ops_.tensors = &arena_;
    ops_.control = &control_;
  }
  RealSetup(const RealSetup&) = delete;
  RealSetup& operator=(const RealSetup&) = delete;

  /// The first layer group's plan.
  const Plan& plan() const { return plan_.groups.front().plan; }
  const ModelPlan& model_plan() const { return plan_; }
  const Arena& arena() const { return arena_; }
  KvCache& cache() { return *cache_; }
  const OpsContext& ops() const { return ops_; }
  Engine engine(const EngineOptions& options) {
    auto made = Engine::create(*model_, *cache_, options, ops_);
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }

 private:
  const Model* model_;
  Registry registry_;
  ThreadPool threads_;
  Scratch scratch_;
  Arena arena_, control_;
  std::unique_ptr<Backend> backend_ = std::move(*make_backend(Device::cpu));
  ModelPlan plan_;
  std::optional<KvCache> cache_;
  OpsContext ops_;
};

/// A prompt of `n` tokens. Its first `shared` tokens are always the same; the others depend on
/// `salt`.
inline std::vector<std::int32_t> make_prompt(const Model& model, std::int32_t n,
                                             std::int32_t salt = 0, std::int32_t shared = 0) {
  std::vector<std::int32_t> out;
  for (std::int32_t t = 0; t < n; ++t) {
    const std::int32_t own = t < shared ? 0 : salt;
    out.push_back((5 + t * 37 + t * t * 11 + own * (29 + 3 * t)) % model.config().vocab);
  }
  return out;
}

/// A greedy request for `answer` tokens, with the log-probabilities of the 4 likeliest.
inline Request greedy(std::vector<std::int32_t> prompt, std::int32_t answer = 24) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = answer;
  r.sampling.ignore_eos = true;
  r.sampling.logprobs = 4;
  return r;
}

struct RealAnswer {
  std::vector<SampledToken> tokens;
  std::optional<Finished> finished;

  std::vector<std::int32_t> text() const {
    std::vector<std::int32_t> out;
    for (const SampledToken& t : tokens) out.push_back(t.token);
    return out;
  }
};

/// Runs until the engine is idle. Request i is submitted after i * `steps_between` steps.
inline std::vector<RealAnswer> serve_real(Engine& engine, const std::vector<Request>& requests,
                                          std::int64_t steps_between = 0) {
  std::vector<RealAnswer> out(requests.size());
  std::map<RequestId, std::size_t> index;
  std::int64_t step = 0;
  while (index.size() < requests.size() || !engine.idle()) {
    while (index.size() < requests.size() && std::ssize(index) * steps_between <= step) {
      const auto id = engine.submit(requests[index.size()]);
      EXPECT_TRUE(id) << id.error().message();
      if (!id) return out;
      index.emplace(*id, index.size());
    }
    auto report = engine.step();
    EXPECT_TRUE(report) << report.error().message();
    if (!report) return out;
    ++step;
    for (TokenEvent& e : report->tokens) {
      RealAnswer& a = out[index.at(e.request)];
      EXPECT_EQ(e.position, std::ssize(a.tokens));
      a.tokens.push_back(std::move(e.sampled));
    }
    for (Finished& f : report->finished) out[index.at(f.request)].finished = std::move(f);
  }
  return out;
}

/// Serves each request in an engine of its own, without a prefix cache.
inline std::vector<RealAnswer> serve_alone(const Model& model, const RealSetup::Options& options,
                                           const std::vector<Request>& requests) {
  std::vector<RealAnswer> out;
  for (const Request& r : requests) {
    RealSetup setup(model, options);
    Engine engine = setup.engine({.prefix_cache = false});
    out.push_back(serve_real(engine, {r})[0]);
  }
  return out;
}

/// Whether tokens and all bits of log-probabilities are equal; else the first difference.
inline testing::AssertionResult same(const RealAnswer& got, const RealAnswer& want) {
  if (got.tokens.size() != want.tokens.size()) {
    return testing::AssertionFailure()
           << got.tokens.size() << " tokens, wanted " << want.tokens.size();
  }
  for (std::size_t i = 0; i < want.tokens.size(); ++i) {
    const SampledToken &g = got.tokens[i], &w = want.tokens[i];
    if (g.token != w.token) {
      return testing::AssertionFailure()
             << "answer[" << i << "] is token " << g.token << ", wanted " << w.token;
    }
    bool equal = g.logprob == w.logprob && g.top.size() == w.top.size();
    for (std::size_t k = 0; equal && k < w.top.size(); ++k) {
      equal = g.top[k].token == w.top[k].token && g.top[k].logprob == w.top[k].logprob;
    }
    if (!equal) {
      return testing::AssertionFailure()
             << "answer[" << i << "], token " << w.token << ": log-probabilities differ, by "
             << g.logprob.value_or(0) - w.logprob.value_or(0) << " in its own";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace lathe
