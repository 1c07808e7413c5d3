// Answers of real models: drafts change no token, no end and no bit of a log-probability.
#include <gtest/gtest.h>

#include "engine/draft/test/draft_test_util.h"
#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

struct DraftCase {
  std::string model, layout = "auto", decode = "auto";
};

std::vector<Request> requests_for(const Model& model) {
  std::vector<Request> out;
  for (std::int32_t i = 0; i < 5; ++i) {
    Request r = greedy(make_prompt(model, 7 + 17 * i, i, 5), 20 + 3 * i);
    SamplingParams& p = r.sampling;
    if (i > 1) {
      p.temperature = 0.6f + 0.3f * static_cast<float>(i - 1);
      p.seed = 40 + static_cast<std::uint64_t>(i);
    }
    if (i == 2) p.top_p = 0.8f;
    if (i == 3) {
      p.top_k = 20;
      p.repetition_penalty = 1.3f;
      p.presence_penalty = 0.5f;
    }
    if (i == 4) p.frequency_penalty = 0.7f;
    out.push_back(std::move(r));
  }
  return out;
}

class Drafts : public testing::TestWithParam<DraftCase> {};

TEST_P(Drafts, ChangeNoBit) {
  const auto model = load_real(GetParam().model);
  RealSetup::Options options;
  options.layout = GetParam().layout;
  options.decode = GetParam().decode;
  options.tokens = 1024;
  const std::vector<Request> requests = requests_for(*model);
  std::vector<RealAnswer> plain;
  {
    RealSetup setup(*model, options);
    Engine engine = setup.engine({});
    plain = serve_real(engine, requests, 1);
  }
  const auto check = [&](Drafter& drafter, std::int64_t draft_tokens) {
    RealSetup setup(*model, options);
    EngineOptions o;
    o.drafter = &drafter;
    o.draft_tokens = draft_tokens;
    Engine engine = setup.engine(o);
    const std::vector<RealAnswer> got = serve_real(engine, requests, 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(same(got[i], plain[i])) << "request " << i << ", " << draft_tokens << " drafts";
      EXPECT_EQ(got[i].finished->reason, plain[i].finished->reason);
    }
    return engine.stats().drafts;
  };
  const auto right = [&](const DraftRequest& r, std::int64_t known) {
    const auto i = static_cast<std::size_t>(r.id.value - 1);
    const std::size_t at = static_cast<std::size_t>(known) - requests[i].prompt.size();
    return at < plain[i].tokens.size() ? plain[i].tokens[at].token : 0;
  };
  for (const std::int64_t d : {1, 2, 4, 8}) {
    ScriptedDrafter oracle(right);
    const DraftStats stats = check(oracle, d);
    EXPECT_GT(stats.all_accepted(), 20);
    EXPECT_EQ(stats.all_accepted(), stats.all_drafted());
  }
  const std::int32_t vocab = model->config().vocab;
  ScriptedDrafter wrong(
      [&](const DraftRequest& r, std::int64_t known) { return (right(r, known) + 1) % vocab; });
  EXPECT_EQ(check(wrong, 3).all_accepted(), 0);
  // Drafts that are right up to a position that differs from step to step.
  ScriptedDrafter partly([&](const DraftRequest& r, std::int64_t known) {
    return (right(r, known) + (known % 3 == 0 ? 1 : 0)) % vocab;
  });
  const DraftStats stats = check(partly, 5);
  EXPECT_GT(stats.all_accepted(), 10);
  EXPECT_LT(stats.all_accepted(), stats.all_drafted());
}

INSTANTIATE_TEST_SUITE_P(Models, Drafts,
                         testing::Values(DraftCase{"llama"}, DraftCase{"qwen3", "gqa_fp8"},
                                         DraftCase{"qwen2_window"}, DraftCase{"qwen3_moe"},
                                         DraftCase{"gpt_oss_bf16"}, DraftCase{"gemma3_new"},
                                         DraftCase{"gemma4_moe"}, DraftCase{"deepseek_v3"},
                                         DraftCase{"deepseek_v3", "mla_fp8"},
                                         DraftCase{"deepseek_v3", "mla_fp8", "gather"},
                                         DraftCase{"deepseek_v3_fp8"}, DraftCase{"deepseek_v32"},
                                         DraftCase{"deepseek_v32", "mla_fp8"},
                                         DraftCase{"glm_moe_dsa"}),
                         [](const auto& test) {
                           std::string out = test.param.model;
                           for (const std::string& s : {test.param.layout, test.param.decode}) {
                             if (s != "auto") out += "_" + s;
                           }
                           return out;
                         });

}  // namespace
}  // namespace lathe
