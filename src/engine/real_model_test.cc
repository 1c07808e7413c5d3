// The engine on real models: small checkpoints, the planner's plans, the CPU's kernels.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "attn/planner.h"
#include "engine/engine.h"
#include "kernels/all.h"

namespace lathe {
namespace {

using Answers = std::vector<std::vector<std::int32_t>>;

// The answers to `requests`, which come all at once.
Answers run(const Model& model, const std::vector<Request>& requests, std::int64_t tokens,
            const EngineOptions& options, std::int64_t* preemptions = nullptr) {
  const Registry registry = all_kernels();
  Wishes wishes;
  wishes.prefill = wishes.decode = "inplace";
  wishes.chunked_prefill_size = 64;
  wishes.max_running_requests = 8;
  wishes.context_length = 128;
  wishes.layers = model.config().layers;
  wishes.gather_budget = wishes.logits_budget = std::int64_t{1} << 22;
  const auto plan =
      make_plan(model.config().attention, describe_machine(Device::cpu), wishes, registry);
  EXPECT_TRUE(plan);
  const std::int64_t pages = tokens / plan->main().page_size;
  auto cache = KvCache::create(*plan, registry, {.budget_bytes = 0, .pages = pages});
  EXPECT_TRUE(cache);
  cache->pools().poison_free();
  Arena arena;
  OpsContext ops;
  ops.arena = &arena;
  auto engine = Engine::create(model, *cache, options, ops);
  EXPECT_TRUE(engine) << engine.error().message();
  Answers answers(requests.size());
  for (const Request& r : requests) {
    const auto id = engine->submit(r);
    EXPECT_TRUE(id) << id.error().message();
  }
  while (!engine->idle()) {
    const auto report = engine->step();
    EXPECT_TRUE(report) << report.error().message();
    if (!report) break;
    for (const TokenEvent& e : report->tokens) {
      answers[e.request.value - 1].push_back(e.sampled.token);
    }
    for (const Finished& f : report->finished) EXPECT_FALSE(f.error) << f.error->message();
  }
  if (preemptions != nullptr) *preemptions = engine->stats().preemptions;
  return answers;
}

// E1 on the CPU's kernels, which are batch-invariant: alone in a large pool, and together in one
// that holds few of them, in small chunks.
TEST(RealModel, CompanyChunksAndPreemptionChangeNoToken) {
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3", "deepseek_v32"}) {
    SCOPED_TRACE(name);
    auto model = load_model(std::string(LATHE_TEST_DATA) + "/models/" + name, {});
    ASSERT_TRUE(model) << model.error().message();
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 5; ++i) {
      Request r;
      for (std::int32_t t = 0; t < 20 + 9 * i; ++t) {
        r.prompt.push_back((3 + t * 7 + (t > 16 ? i : 0)) % (*model)->config().vocab);
      }
      r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      r.sampling.seed = static_cast<std::uint64_t>(i);
      r.sampling.max_tokens = 64;
      r.sampling.ignore_eos = true;
      requests.push_back(std::move(r));
    }
    Answers alone;
    for (const Request& r : requests) {
      EngineOptions options;
      options.prefix_cache = false;
      alone.push_back(run(**model, {r}, 1024, options)[0]);
      EXPECT_EQ(alone.back().size(), 64u);
    }
    EXPECT_NE(alone[0], alone[2]);
    EXPECT_NE(alone[1], alone[3]);
    for (bool prefix_cache : {true, false}) {
      EngineOptions options;
      options.prefix_cache = prefix_cache;
      options.chunked_prefill_size = 7;
      std::int64_t preemptions = 0;
      EXPECT_EQ(run(**model, requests, 256, options, &preemptions), alone);
      EXPECT_GT(preemptions, 0);
    }
  }
}

}  // namespace
}  // namespace lathe
