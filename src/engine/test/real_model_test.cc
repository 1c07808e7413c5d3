// The engine with real models and pools too small for the requests: preemption, the prefix cache
// and small chunks at once.
#include <gmock/gmock.h>

#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

std::vector<Request> mixed_requests(const Model& model) {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 5; ++i) {
    Request r = greedy(make_prompt(model, 20 + 9 * i, i, 17), 64);
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = static_cast<std::uint64_t>(i);
    requests.push_back(std::move(r));
  }
  return requests;
}

std::vector<RealAnswer> answers_alone(const Model& model, const RealSetup::Options& options,
                                      const std::vector<Request>& requests) {
  std::vector<RealAnswer> out = serve_alone(model, options, requests);
  for (const RealAnswer& a : out) EXPECT_EQ(a.tokens.size(), 64u);
  EXPECT_NE(out[0].text(), out[2].text());
  EXPECT_NE(out[1].text(), out[3].text());
  return out;
}

// E1: requests alone in a large pool, and together in a pool for a few of them, in small chunks.
TEST(RealModel, CompanyChunksAndPreemptionChangeNothing) {
  for (const char* name :
       {"llama", "qwen3_moe", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "gpt_oss_bf16",
        "gemma3_new", "gemma4_moe", "hy_v4", "axk2", "llama4_chunks"}) {
    const auto model = load_real(name);
    const auto requests = mixed_requests(*model);
    for (const char* kind : {"inplace", "auto"}) {
      RealSetup::Options options{.prefill = kind, .decode = kind};
      const auto want = answers_alone(*model, options, requests);
      options.tokens = 256;
      for (bool prefix_cache : {true, false}) {
        RealSetup setup(*model, options);
        Engine engine = setup.engine({.chunked_prefill_size = 7, .prefix_cache = prefix_cache});
        const auto got = serve_real(engine, requests);
        EXPECT_GT(engine.stats().preemptions, 0);
        // A preempted answer's keys, which decode had written, are recomputed by extend: in the
        // expanded form they may differ in their last bits, and with them what follows.
        const auto kinds = setup.plan().phase(Phase::extend).routes;
        const bool expands = kinds.front().kind == KernelKind::ragged;
        for (std::size_t i = 0; i < want.size(); ++i) {
          const std::string what = std::string(name) + " " + kind + ", request " +
                                   std::to_string(i) + (prefix_cache ? ", prefix cache" : "");
          ASSERT_EQ(got[i].text(), want[i].text()) << what;
          if (!expands || got[i].finished->preemptions == 0) {
            EXPECT_TRUE(same(got[i], want[i])) << what;
          }
        }
      }
    }
  }
}

// Absorbed attention in tiles of a few rows, on every route.
TEST(RealModel, TilesOfActivationsChangeNoBit) {
  for (const char* name : {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}) {
    const auto model = load_real(name);
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 4; ++i) requests.push_back(greedy(make_prompt(*model, 60 + i, i)));
    for (const char* kind : {"inplace", "gather", "auto"}) {
      RealSetup::Options options{.prefill = kind};
      RealSetup whole(*model, options);
      Engine engine = whole.engine({});
      const auto want = serve_real(engine, requests);
      const Budget* all = whole.model_plan().budget(BudgetKind::activations);
      EXPECT_EQ(all->tile_rows, 0);

      // Room for 16 rows: the 240 rows of the prompts are one step's.
      const ModelConfig& config = model->config();
      const std::int64_t heads = config.groups.front().problem.heads;
      const AttentionProblem& p = config.groups.front().problem;
      const std::int64_t row = heads * (4 * (p.nope + p.rope) + 2 * (p.nope + p.rope) + 4 * p.nope);
      options.activations_budget = all->bytes - (options.context - 16) * row;
      RealSetup tiled(*model, options);
      const std::int64_t tile = tiled.model_plan().budget(BudgetKind::activations)->tile_rows;
      EXPECT_GT(tile, 0) << name;
      EXPECT_LT(tile, 64) << name;
      Engine in_tiles = tiled.engine({});
      const auto got = serve_real(in_tiles, requests);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got[i], want[i])) << name << " " << kind << ", request " << i;
      }
      // Short prompts run in the expanded form of "auto", which has no such tiles.
      if (kind == std::string("auto")) continue;
      EXPECT_LT(tiled.arena().high_water(), whole.arena().high_water()) << name << " " << kind;
    }
  }
}

}  // namespace
}  // namespace lathe
