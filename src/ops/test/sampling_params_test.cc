#include "ops/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int32_t kFewTokens = 10;

TEST(SamplingParams, TheDefaultsAndTheBoundsPass) {
  EXPECT_TRUE(check_sampling_params({}, kFewTokens, {}));
  SamplingParams p;
  p.temperature = 0;
  p.top_k = 1;
  p.min_p = 1;
  p.top_p = std::numeric_limits<float>::min();
  p.repetition_penalty = 2;
  p.frequency_penalty = -2;
  p.presence_penalty = 2;
  p.logit_bias = {{0, -100}, {9, 100}};
  p.stop_token_ids = {0, 9};
  p.min_tokens = 3;
  p.max_tokens = 3;
  p.logprobs = kFewTokens;
  const auto ok = check_sampling_params(p, kFewTokens, {});
  EXPECT_TRUE(ok) << ok.error().message();
}

TEST(SamplingParams, ErrorsNameTheParameter) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    const char* field;
    std::function<void(SamplingParams&)> set;
  };
  const std::vector<Case> cases{
      {"temperature", [](auto& p) { p.temperature = -0.5f; }},
      {"temperature", [&](auto& p) { p.temperature = nan; }},
      {"temperature", [&](auto& p) { p.temperature = infinity; }},
      {"top_p", [](auto& p) { p.top_p = 0; }},
      {"top_p", [](auto& p) { p.top_p = 1.5f; }},
      {"top_p", [&](auto& p) { p.top_p = nan; }},
      {"top_k", [](auto& p) { p.top_k = 0; }},
      {"top_k", [](auto& p) { p.top_k = -2; }},
      {"min_p", [](auto& p) { p.min_p = -0.1f; }},
      {"min_p", [](auto& p) { p.min_p = 1.1f; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 2.5f; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = 2.5f; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = -2.5f; }},
      {"logit_bias.10",
       [](auto& p) {
         p.logit_bias = {{1, 0}, {kFewTokens, 1}};
       }},
      {"logit_bias.-1",
       [](auto& p) {
         p.logit_bias = {{-1, 1}};
       }},
      {"logit_bias.1",
       [&](auto& p) {
         p.logit_bias = {{1, -infinity}};
       }},
      {"stop_token_ids[0]", [](auto& p) { p.stop_token_ids = {-1}; }},
      {"max_new_tokens", [](auto& p) { p.max_tokens = 0; }},
      {"min_new_tokens", [](auto& p) { p.min_tokens = -1; }},
      {"min_new_tokens", [](auto& p) { p.max_tokens = 2, p.min_tokens = 3; }},
      {"min_new_tokens",
       [](auto& p) {
         p.stop_token_ids = {0, 1, 2, 3, 4, 5, 6, 7, 8};
         p.min_tokens = 1;
       }},
      {"top_logprobs_num", [](auto& p) { p.logprobs = -1; }},
      {"top_logprobs_num", [](auto& p) { p.logprobs = kFewTokens + 1; }},
      {"token_ids_logprob[1]",
       [](auto& p) {
         p.logprob_ids = {0, kFewTokens};
       }},
  };
  const std::vector<std::int32_t> eos{9};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SamplingParams p;
    cases[i].set(p);
    const auto result = check_sampling_params(p, kFewTokens, eos);
    ASSERT_FALSE(result) << "case " << i;
    EXPECT_EQ(result.error().field, cases[i].field) << "case " << i;
  }
}

TEST(SamplingParams, StopTokensAreTheRequestsAndTheModels) {
  SamplingParams p;
  p.stop_token_ids = {7, 3, 7};
  const std::vector<std::int32_t> eos{5, 3};
  EXPECT_THAT(stop_tokens(p, eos), ElementsAre(3, 5, 7));
  p.ignore_eos = true;
  EXPECT_THAT(stop_tokens(p, eos), ElementsAre(3, 7));
  EXPECT_THAT(stop_tokens({}, {}), IsEmpty());
}

}  // namespace
}  // namespace lathe
