// The engine on real models whose pools are too small for what they are asked: preemption, the
// prefix cache and small chunks at once.
#include <gmock/gmock.h>

#include "engine/real_model_test_util.h"

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
  std::vector<RealAnswer> out;
  for (const Request& r : requests) {
    RealSetup setup(model, options);
    Engine engine = setup.engine({.prefix_cache = false});
    out.push_back(serve(engine, {r})[0]);
    EXPECT_EQ(out.back().tokens.size(), 64u);
  }
  EXPECT_NE(out[0].text(), out[2].text());
  EXPECT_NE(out[1].text(), out[3].text());
  return out;
}

// E1: alone in a large pool, and together in one that holds few of them, in small chunks.
TEST(RealModel, CompanyChunksAndPreemptionChangeNothing) {
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3", "deepseek_v32", "glm_moe_dsa",
                           "gpt_oss_bf16", "gemma3_new"}) {
    const auto model = load_real(name);
    const auto requests = mixed_requests(*model);
    for (const char* kind : {"inplace", "auto"}) {
      RealSetup::Options options{.prefill = kind, .decode = kind};
      const auto want = answers_alone(*model, options, requests);
      options.tokens = 256;
      for (bool prefix_cache : {true, false}) {
        RealSetup setup(*model, options);
        Engine engine = setup.engine({.chunked_prefill_size = 7, .prefix_cache = prefix_cache});
        const auto got = serve(engine, requests);
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

}  // namespace
}  // namespace lathe
