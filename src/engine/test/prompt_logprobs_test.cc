// Log-probabilities of prompts, against the softmax of the fake model's formula.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/engine.h"
#include "engine/test/fake_model_test_util.h"

namespace lathe {
namespace {

std::vector<std::int32_t> prompt_of(std::int32_t n, std::int32_t first) {
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < n; ++i) out.push_back((first + i * 11) % FakeModel::kNanToken);
  return out;
}

Request scoring(std::vector<std::int32_t> prompt, std::int32_t from) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = 3;
  r.sampling.logprobs = 2;
  r.sampling.logprob_ids = {9, 1};
  r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
  r.prompt_logprobs_from = from;
  return r;
}

double logprob_of(std::span<const std::int32_t> before, std::int32_t token) {
  const std::vector<float> logits = fake_logits(before, FakeModel::kVocab);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - std::log(sum);
}

void expect_scored(const Request& request, const std::vector<SampledToken>& got) {
  const std::span<const std::int32_t> prompt = request.prompt;
  const auto first = static_cast<std::size_t>(std::max(1, *request.prompt_logprobs_from));
  ASSERT_EQ(got.size(), prompt.size() - std::min(first, prompt.size()));
  for (std::size_t k = 0; k < got.size(); ++k) {
    const std::size_t at = first + k;
    EXPECT_EQ(got[k].token, prompt[at]);
    ASSERT_TRUE(got[k].logprob);
    EXPECT_NEAR(*got[k].logprob, logprob_of(prompt.first(at), prompt[at]), 1e-6);
    ASSERT_EQ(got[k].top.size(), 2u);
    EXPECT_GE(got[k].top[0].logprob, got[k].top[1].logprob);
    EXPECT_NEAR(got[k].top[0].logprob, logprob_of(prompt.first(at), got[k].top[0].token), 1e-6);
    ASSERT_EQ(got[k].asked.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(got[k].asked[i].token, request.sampling.logprob_ids[i]);
      EXPECT_NEAR(got[k].asked[i].logprob, logprob_of(prompt.first(at), got[k].asked[i].token),
                  1e-6);
    }
  }
}

// Runs all requests; checks each first token's prompt log-probabilities, and the answers.
void run_and_check(Engine& engine, const std::vector<Request>& requests) {
  std::map<std::uint64_t, const Request*> of;
  for (const Request& r : requests) of[engine.submit(r)->value] = &r;
  std::map<std::uint64_t, Answer> answers;
  std::size_t checked = 0;
  while (!engine.idle()) {
    const auto report = engine.step();
    ASSERT_TRUE(report);
    for (const TokenEvent& t : report->tokens) {
      answers[t.request.value].tokens.push_back(t.sampled.token);
      if (t.position > 0) {
        EXPECT_TRUE(t.prompt_logprobs.empty());
        continue;
      }
      expect_scored(*of.at(t.request.value), t.prompt_logprobs);
      ++checked;
    }
    for (const Finished& f : report->finished) answers[f.request.value].reason = f.reason;
  }
  EXPECT_EQ(checked, requests.size());
  for (const auto& [id, request] : of) {
    EXPECT_EQ(answers[id], expected_answer(*request, engine.capacity()));
  }
}

TEST(PromptLogprobs, AreTheModelsOwn) {
  for (std::int64_t chunk : {512, 7, 1}) {
    FakeSetup setup;
    Engine engine = setup.engine({.chunked_prefill_size = chunk});
    run_and_check(engine, {scoring(prompt_of(40, 1), 0), scoring(prompt_of(30, 5), 12),
                           scoring(prompt_of(1, 3), 0), scoring(prompt_of(9, 8), 9)});
  }
}

TEST(PromptLogprobs, RowsThatGiveThemAreNotTakenFromTheCache) {
  FakeSetup setup;
  Engine engine = setup.engine();
  const Request all = scoring(prompt_of(60, 1), 0);
  const Request end = scoring(prompt_of(60, 1), 41);
  run_and_check(engine, {all});
  run_and_check(engine, {all});
  EXPECT_EQ(engine.stats().cached_tokens, 0);
  run_and_check(engine, {end});
  EXPECT_EQ(engine.stats().cached_tokens, 40);
}

TEST(PromptLogprobs, SurvivePreemption) {
  FakeSetup setup({.pages = 24});
  Engine engine = setup.engine({.chunked_prefill_size = 16, .prefix_cache = false});
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 12; ++i) {
    requests.push_back(scoring(prompt_of(28, i), 0));
    requests.back().sampling.max_tokens = 20;
  }
  run_and_check(engine, requests);
  EXPECT_GT(engine.stats().preemptions, 0);
}

TEST(PromptLogprobs, RoutesThatChangeCutTheRows) {
  FakeSetup setup({.short_context = 10});
  Engine engine = setup.engine({.chunked_prefill_size = 13});
  run_and_check(engine, {scoring(prompt_of(40, 1), 0), scoring(prompt_of(25, 2), 4)});
}

// The one token of the answer has no row, and so needs no page.
TEST(PromptLogprobs, APromptAloneMayFillTheCache) {
  const auto alone = [](std::int32_t tokens) {
    Request r = scoring(prompt_of(tokens, 1), 0);
    r.sampling.max_tokens = 1;
    r.only_prompt = true;
    return r;
  };
  for (const FakeOptions& options :
       {FakeOptions{.context_length = 40}, FakeOptions{.pages = 10},
        FakeOptions{.pages = 10, .state = true}, FakeOptions{.pages = 10, .window = 6},
        FakeOptions{.pages = 10, .late = true, .overlaps = true}}) {
    for (std::int64_t chunk : {512, 7}) {
      FakeSetup setup(options);
      Engine engine = setup.engine({.chunked_prefill_size = chunk});
      run_and_check(engine, {alone(40), alone(39)});
      run_and_check(engine, {alone(40), scoring(prompt_of(37, 2), 0), alone(40)});
      const auto refused = engine.submit(alone(41));
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().offered, "41 of the prompt + 0 of the answer = 41");
    }
  }
  FakeSetup setup;
  Engine engine = setup.engine();
  Request forced = alone(4);
  forced.forced = {1};
  EXPECT_FALSE(engine.submit(forced));
  // A longer answer's limit is not read.
  Request longer = alone(4);
  longer.sampling.max_tokens = 5;
  ASSERT_TRUE(engine.submit(longer));
  const auto report = engine.step();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->tokens.size(), 1u);
  ASSERT_EQ(report->finished.size(), 1u);
  EXPECT_EQ(report->finished[0].reason, FinishReason::length);
}

TEST(PromptLogprobs, BadStartsAreRefused) {
  FakeSetup setup;
  Engine engine = setup.engine();
  EXPECT_FALSE(engine.submit(scoring(prompt_of(5, 1), 6)));
  EXPECT_FALSE(engine.submit(scoring(prompt_of(5, 1), -1)));
  Request none = scoring(prompt_of(5, 1), 0);
  none.sampling.logprobs.reset();
  EXPECT_FALSE(engine.submit(none));
  EXPECT_TRUE(engine.idle());
}

}  // namespace
}  // namespace lathe
