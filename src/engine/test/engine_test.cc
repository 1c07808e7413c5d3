#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/test/fake_model_test_util.h"
#include "kernels/devices/all.h"
#include "kernels/philox.h"
#include "plan/model_plan.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::int32_t> words(std::int32_t n, std::int32_t first = 1) {
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < n; ++i) out.push_back((first + i * 11) % FakeModel::kNanToken);
  return out;
}

Request word_request(std::vector<std::int32_t> prompt, std::int32_t max_tokens,
                     std::optional<std::uint64_t> seed = std::nullopt) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = seed ? 1.0f : 0.0f;
  r.sampling.seed = seed;
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = true;
  // Never sample the NaN token unless a test wants it.
  r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
  return r;
}

struct Outcome {
  Answer answer;
  std::optional<Finished> finished;
  std::vector<SampledToken> sampled;
};
using Outcomes = std::map<RequestId, Outcome>;

void take(const StepReport& report, Outcomes& out) {
  for (const TokenEvent& e : report.tokens) {
    out[e.request].answer.tokens.push_back(e.sampled.token);
    out[e.request].sampled.push_back(e.sampled);
  }
  for (const Finished& f : report.finished) {
    out[f.request].answer.reason = f.reason;
    out[f.request].finished = f;
  }
}

Outcomes run(Engine& engine) {
  Outcomes out;
  for (int i = 0; i < 10000 && !engine.idle(); ++i) {
    const auto report = engine.step();
    EXPECT_TRUE(report);
    if (!report) break;
    take(*report, out);
  }
  EXPECT_TRUE(engine.idle());
  return out;
}

Outcome run_one(Engine& engine, const Request& r) {
  const auto id = engine.submit(r);
  EXPECT_TRUE(id) << id.error().message();
  return run(engine).at(*id);
}

TEST(Engine, GreedyAndSeededAnswersAreTheModels) {
  for (LayoutKind layout : {LayoutKind::gqa_bf16, LayoutKind::mla_bf16}) {
    FakeOptions options;
    options.layout = layout;
    FakeSetup setup(options);
    Engine engine = setup.engine();
    for (const Request& r : {word_request(words(9), 12), word_request(words(9), 12, 5)}) {
      const Outcome got = run_one(engine, r);
      EXPECT_EQ(got.answer, expected_answer(r, engine.capacity()));
      EXPECT_EQ(got.answer.tokens.size(), 12u);
      EXPECT_EQ(got.finished->prompt_tokens, 9);
      EXPECT_EQ(got.finished->answer_tokens, 12);
    }
  }
}

// E1: tokens and log-probabilities are the same, bit for bit, in batches of 1 and 16, for every
// chunk size, and with and without a prefix cache.
TEST(Engine, BitsDoNotDependOnBatchChunksOrPrefixCache) {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 16; ++i) {
    std::vector<std::int32_t> prompt = words(6);  // one and a half shared pages
    const auto own = words(1 + i, 20 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(word_request(std::move(prompt), 6 + i % 5, 100 + static_cast<unsigned>(i)));
    if (i % 3 == 0) requests.back().sampling.temperature = 0;
    requests.back().sampling.logprobs = 3;
  }
  const auto same = [](const Outcome& a, const Outcome& b) {
    ASSERT_EQ(a.answer, b.answer);
    ASSERT_EQ(a.sampled.size(), b.sampled.size());
    for (std::size_t i = 0; i < a.sampled.size(); ++i) {
      EXPECT_EQ(*a.sampled[i].logprob, *b.sampled[i].logprob);
      for (std::size_t n = 0; n < 3; ++n) {
        EXPECT_EQ(a.sampled[i].top[n].logprob, b.sampled[i].top[n].logprob);
      }
    }
  };
  std::vector<Outcome> alone;
  for (const Request& r : requests) {
    FakeSetup setup;
    Engine engine = setup.engine({.prefix_cache = false});
    alone.push_back(run_one(engine, r));
    ASSERT_EQ(alone.back().answer, expected_answer(r, engine.capacity()));
  }
  for (std::int64_t chunk = 1; chunk <= 23; ++chunk) {
    for (bool prefix_cache : {true, false}) {
      FakeSetup setup;
      EngineOptions options;
      options.chunked_prefill_size = chunk;
      options.prefix_cache = prefix_cache;
      Engine engine = setup.engine(options);
      std::vector<RequestId> ids;
      for (const Request& r : requests) ids.push_back(*engine.submit(r));
      const Outcomes got = run(engine);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        SCOPED_TRACE("chunk " + std::to_string(chunk) + ", request " + std::to_string(i));
        same(got.at(ids[i]), alone[i]);
      }
      EXPECT_EQ(engine.stats().cached_tokens > 0, prefix_cache);
    }
  }
}

TEST(Engine, StepsMixDecodesWithPrefillChunks) {
  FakeSetup setup;
  EngineOptions options;
  options.chunked_prefill_size = 4;
  Engine engine = setup.engine(options);
  const auto first = engine.submit(word_request(words(3), 5));
  const auto second = engine.submit(word_request(words(9, 30), 2));
  ASSERT_TRUE(first && second);
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  Outcomes got;
  while (!engine.idle()) {
    const auto report = engine.step();
    ASSERT_TRUE(report);
    EXPECT_EQ(report->step, std::ssize(rows) + 1);
    rows.push_back({report->decode_rows, report->prefill_rows});
    take(*report, got);
  }
  // 3 rows of the first and 1 of the second; then a decode row of the first, and chunks of the
  // second.
  EXPECT_THAT(rows, ElementsAre(std::pair(0, 4), std::pair(1, 4), std::pair(1, 4), std::pair(2, 0),
                                std::pair(1, 0)));
  EXPECT_EQ(got.at(*first).answer.tokens.size(), 5u);
  EXPECT_EQ(got.at(*second).answer.tokens.size(), 2u);
}

TEST(Engine, AnswersEndAsTheirParametersSay) {
  FakeSetup setup;
  Engine engine = setup.engine();
  // A long answer without stops, to learn where its tokens are.
  const std::vector<std::int32_t> all =
      run_one(engine, word_request(words(5), 60, 9)).answer.tokens;
  const std::int32_t stop = all[20];
  const auto first = std::find(all.begin(), all.end(), stop) - all.begin();
  Request r = word_request(words(5), 60, 9);
  r.sampling.stop_token_ids = {stop};
  Outcome got = run_one(engine, r);
  EXPECT_EQ(got.answer.reason, FinishReason::stop);
  EXPECT_EQ(std::ssize(got.answer.tokens), first + 1);
  EXPECT_EQ(got.answer.tokens.back(), stop);
  EXPECT_EQ(run_one(engine, word_request(words(5), 60, 9)).answer.reason, FinishReason::length);

  // The model's own end token, biased to be likely, and ruled out for 10 tokens.
  r = word_request(words(5), 60, 9);
  r.sampling.logit_bias.push_back({FakeModel::kEos, 100});
  EXPECT_EQ(run_one(engine, r).answer.tokens.size(), 60u);
  r.sampling.ignore_eos = false;
  got = run_one(engine, r);
  EXPECT_THAT(got.answer.tokens, ElementsAre(FakeModel::kEos));
  EXPECT_EQ(got.answer.reason, FinishReason::stop);
  r.sampling.min_tokens = 10;
  got = run_one(engine, r);
  EXPECT_EQ(got.answer.tokens.size(), 11u);
  EXPECT_EQ(std::count(got.answer.tokens.begin(), got.answer.tokens.end(), FakeModel::kEos), 1);

  // Without max_tokens an answer goes on until the context is full.
  r = word_request(words(5), 1, 9);
  r.sampling.max_tokens.reset();
  got = run_one(engine, r);
  EXPECT_EQ(got.answer.reason, FinishReason::length);
  EXPECT_EQ(std::ssize(got.answer.tokens), engine.capacity() - 5);
}

TEST(Engine, ASeedIsDerivedWhereNoneIsGiven) {
  std::vector<Answer> answers;
  for (std::uint64_t seed : {1u, 1u, 2u}) {
    FakeSetup setup;
    EngineOptions options;
    options.seed = seed;
    Engine engine = setup.engine(options);
    Request r = word_request(words(5), 12, 0);
    r.sampling.seed.reset();
    answers.push_back(run_one(engine, r).answer);
    EXPECT_EQ(answers.back(), expected_answer(r, engine.capacity(), random_bits(seed, 1)));
    const Answer again = run_one(engine, r).answer;  // a later request has another seed
    EXPECT_NE(again, answers.back());
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_NE(answers[0], answers[2]);
}

TEST(Engine, CountsWhatThePrefixCacheHad) {
  FakeSetup setup;  // pages of 4
  Engine engine = setup.engine();
  EXPECT_EQ(run_one(engine, word_request(words(11), 4)).finished->cached_tokens, 0);
  // Prompt and answer have 15 tokens; the last has no key, so 14 have keys, 12 of them in full
  // pages.
  EXPECT_EQ(engine.stats().prefix_cache_tokens, 12);
  // A prompt's last token is recomputed for its logits; those before it on its page are copied.
  EXPECT_EQ(run_one(engine, word_request(words(11), 4)).finished->cached_tokens, 10);
  EXPECT_EQ(run_one(engine, word_request(words(8), 1)).finished->cached_tokens, 7);
  Request longer = word_request(words(11), 6);
  const Outcome got = run_one(engine, longer);
  longer.prompt.insert(longer.prompt.end(), got.answer.tokens.begin(), got.answer.tokens.end());
  EXPECT_EQ(run_one(engine, longer).finished->cached_tokens, 16);
  EXPECT_EQ(engine.stats().cached_tokens, 10 + 7 + 10 + 16);
  engine.clear_prefix_cache();
  EXPECT_EQ(setup.cache->ledger().free(), setup.cache->ledger().total());
  EXPECT_EQ(run_one(engine, word_request(words(11), 4)).finished->cached_tokens, 0);

  FakeSetup other;
  Engine off = other.engine({.prefix_cache = false});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_one(off, word_request(words(11), 4)).finished->cached_tokens, 0);
    EXPECT_EQ(other.cache->ledger().free(), other.cache->ledger().total());
  }
}

// E7: the pool holds little more than one answer; both finish, in order of arrival.
TEST(Engine, PreemptionLosesNothing) {
  for (bool prefix_cache : {true, false}) {
    FakeOptions options;
    options.pages = 10;
    FakeSetup setup(options);
    Engine engine = setup.engine({.prefix_cache = prefix_cache});
    const Request a = word_request(words(6), 24, 3);
    Request b = word_request(words(7, 20), 24, 4);
    b.sampling.frequency_penalty = 1;
    const RequestId first = *engine.submit(a);
    const RequestId second = *engine.submit(b);
    bool preempted = false;
    Outcomes got;
    while (!engine.idle()) {
      const auto report = engine.step();
      ASSERT_TRUE(report);
      take(*report, got);
      preempted |= engine.state(second) == RequestState::preempted;
      EXPECT_NE(engine.state(first), RequestState::preempted);
    }
    EXPECT_TRUE(preempted);
    EXPECT_EQ(got.at(first).answer, expected_answer(a, engine.capacity()));
    EXPECT_EQ(got.at(second).answer, expected_answer(b, engine.capacity()));
    EXPECT_GT(got.at(second).finished->preemptions, 0);
    EXPECT_EQ(got.at(second).finished->cached_tokens, 0);
    EXPECT_EQ(engine.stats().preemptions, got.at(second).finished->preemptions);
    EXPECT_EQ(engine.stats().cached_tokens > 0, prefix_cache);
  }
}

TEST(Engine, APreemptedRequestCanBeCancelled) {
  FakeOptions options;
  options.pages = 10;
  FakeSetup setup(options);
  Engine engine = setup.engine();
  const RequestId first = *engine.submit(word_request(words(6), 24));
  const RequestId second = *engine.submit(word_request(words(7, 20), 24));
  Outcomes got;
  while (engine.state(second) != RequestState::preempted) take(*engine.step(), got);
  ASSERT_TRUE(engine.cancel(second));
  const std::vector<std::int32_t> before = got.at(second).answer.tokens;
  EXPECT_FALSE(before.empty());
  for (const auto& [id, outcome] : run(engine)) got[id].finished = outcome.finished;
  EXPECT_EQ(got.at(second).finished->reason, FinishReason::cancelled);
  EXPECT_EQ(got.at(second).finished->answer_tokens, std::ssize(before));
  EXPECT_EQ(got.at(first).finished->answer_tokens, 24);
  engine.clear_prefix_cache();
  EXPECT_EQ(setup.cache->ledger().used(), 0);
}

TEST(Engine, CancelFreesAtOnceAndIsReported) {
  FakeSetup setup;
  EngineOptions options;
  options.max_running_requests = 1;
  options.prefix_cache = false;
  Engine engine = setup.engine(options);
  const RequestId running = *engine.submit(word_request(words(9), 20));
  const RequestId waiting = *engine.submit(word_request(words(9), 20));
  const RequestId stopped = *engine.submit(word_request(words(9), 3));
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.state(running), RequestState::running);
  EXPECT_EQ(engine.state(waiting), RequestState::waiting);
  EXPECT_TRUE(engine.cancel(running));
  EXPECT_EQ(setup.cache->ledger().used(), 0);
  EXPECT_TRUE(engine.cancel(waiting));
  EXPECT_FALSE(engine.cancel(waiting));
  EXPECT_FALSE(engine.cancel(RequestId{99}));
  auto report = engine.step();
  ASSERT_TRUE(report);
  ASSERT_EQ(report->finished.size(), 2u);
  EXPECT_EQ(report->finished[0].request, running);
  EXPECT_EQ(report->finished[0].reason, FinishReason::cancelled);
  EXPECT_EQ(report->finished[0].answer_tokens, 1);
  EXPECT_EQ(report->finished[1].request, waiting);
  EXPECT_TRUE(engine.cancel(stopped, FinishReason::stop));
  EXPECT_FALSE(engine.idle());
  report = engine.step();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->step, 2);  // nothing ran
  ASSERT_EQ(report->finished.size(), 1u);
  EXPECT_EQ(report->finished[0].reason, FinishReason::stop);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.state(running), RequestState::finished);
}

TEST(Engine, RefusesWhatCannotBeAndChangesNothing) {
  FakeOptions options;
  options.pages = 10;  // 40 tokens
  options.context_length = 60;
  FakeSetup setup(options);
  Engine engine = setup.engine();
  const auto refused = [&](Request r) {
    const auto id = engine.submit(std::move(r));
    EXPECT_FALSE(id);
    EXPECT_TRUE(engine.idle());
    return id ? Error{} : id.error();
  };
  EXPECT_EQ(refused(word_request({}, 1)).field, "prompt");
  EXPECT_EQ(refused(word_request({1, FakeModel::kVocab}, 1)).field, "prompt[1]");
  EXPECT_EQ(refused(word_request({-1}, 1)).field, "prompt[0]");
  Request hot = word_request({1}, 1);
  hot.sampling.temperature = -1;
  EXPECT_EQ(refused(hot).field, "temperature");

  Error e = refused(word_request(words(30), 31));
  EXPECT_EQ(e.field, "--context-length");
  EXPECT_THAT(e.message(), HasSubstr("at most 60 tokens"));
  EXPECT_THAT(e.message(), HasSubstr("30 of the prompt + 31 of the answer = 61"));
  EXPECT_THAT(e.message(), HasSubstr("--context-length 61"));
  e = refused(word_request(words(30), 11));
  EXPECT_EQ(e.field, "--max-total-tokens");
  EXPECT_EQ(e.code, ErrorCode::exhausted);
  EXPECT_THAT(e.message(), HasSubstr("at most 40 tokens"));
  EXPECT_THAT(e.message(), HasSubstr("--max-total-tokens 41"));
  EXPECT_THAT(e.message(), HasSubstr("--kv-layout"));
  Request open = word_request(words(40), 1);
  open.sampling.max_tokens.reset();
  EXPECT_EQ(refused(open).field, "--max-total-tokens");

  // A request that just fits runs.
  EXPECT_EQ(run_one(engine, word_request(words(30), 10)).answer.tokens.size(), 10u);
  EXPECT_EQ(*engine.submit(word_request({1}, 1)), RequestId{2});
}

TEST(Engine, RefusesOptionsBeyondThePlan) {
  FakeSetup setup;
  const OpsContext ops = setup.ops();
  const auto field = [&](EngineOptions options) {
    const auto made = Engine::create(*setup.model, *setup.cache, options, ops);
    return made ? std::string() : made.error().field;
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({.chunked_prefill_size = 513}), "--chunked-prefill-size");
  EXPECT_EQ(field({.chunked_prefill_size = -1}), "--chunked-prefill-size");
  EXPECT_EQ(field({.max_running_requests = 33}), "--max-running-requests");
  ASSERT_TRUE(setup.cache->ledger().allocate(setup.cache->ledger().total()));
  EXPECT_EQ(field({}), "--max-total-tokens");
}

TEST(Engine, NonFiniteLogitsEndTheirRequestAlone) {
  for (bool debug_nan : {false, true}) {
    FakeSetup setup;
    EngineOptions options;
    options.debug_nan = debug_nan;
    options.chunked_prefill_size = 6;
    Engine engine = setup.engine(options);
    const Request good = word_request(words(5), 6);
    Request bad = word_request(words(9, 20), 6);
    bad.prompt[2] = FakeModel::kNanToken;
    const RequestId first = *engine.submit(good);
    const RequestId second = *engine.submit(bad);
    const Outcomes got = run(engine);
    EXPECT_EQ(got.at(first).answer, expected_answer(good, engine.capacity()));
    const Finished& f = *got.at(second).finished;
    EXPECT_EQ(f.reason, FinishReason::error);
    EXPECT_THAT(got.at(second).answer.tokens, IsEmpty());
    ASSERT_TRUE(f.error);
    EXPECT_EQ(f.error->field, "logits of request 2");
    // Its first rows run in step 1 with the other prompt, its NaN token in step 2.
    if (debug_nan) {
      EXPECT_EQ(f.error->offered, "NaN or Inf in step 2, after layer 1");
    } else {
      EXPECT_EQ(f.error->offered, "NaN or Inf in step 3");
      EXPECT_THAT(f.error->hint, HasSubstr("--debug-nan"));
    }
    // Has the good request's 10 keys, in 2 full pages, and nothing of the other.
    EXPECT_EQ(engine.stats().prefix_cache_tokens, 8);
    engine.clear_prefix_cache();
    EXPECT_EQ(setup.cache->ledger().used(), 0);
  }
}

// E9: pages cached before the failure stay; pages of the failed step do not enter the prefix cache.
TEST(Engine, KeysThatLedToNanAreNotCached) {
  FakeSetup setup;  // pages of 4
  Engine engine = setup.engine();
  Request r = word_request(words(7), 6);
  r.sampling.logit_bias = {{FakeModel::kNanToken, 1000}};
  const Outcome got = run_one(engine, r);
  EXPECT_THAT(got.answer.tokens, ElementsAre(FakeModel::kNanToken));
  EXPECT_EQ(got.answer.reason, FinishReason::error);
  EXPECT_EQ(engine.stats().prefix_cache_tokens, 4);  // of 7 before the NaN, not 8 with it
}

TEST(Engine, AFailedStepCanBeRepeated) {
  FakeSetup setup;
  EngineOptions options;
  options.chunked_prefill_size = 3;
  Engine engine = setup.engine(options);
  const Request r = word_request(words(8), 6, 1);
  const RequestId id = *engine.submit(r);
  Outcomes got;
  for (int i = 0; !engine.idle(); ++i) {
    setup.model->fail_next = i % 2 == 0;
    const auto report = engine.step();
    ASSERT_EQ(report.ok(), i % 2 == 1);
    if (!report) {
      EXPECT_EQ(report.error().field, "forward");
      continue;
    }
    EXPECT_EQ(report->step, i / 2 + 1);
    take(*report, got);
  }
  EXPECT_EQ(got.at(id).answer, expected_answer(r, engine.capacity()));
}

// An engine with a real plan and its pools, an indexer's keys included.
TEST(Engine, RunsOnAPlannersPlan) {
  const Registry registry = all_kernels();
  for (const AttentionProblem& problem : {gqa_problem(4, 2, 64), deepseek_v32_problem(16)}) {
    PlanRequest plan_request;
    plan_request.chunked_prefill_size = 16;
    plan_request.max_running_requests = 4;
    plan_request.context_length = 200;
    plan_request.kv_dtype = "bf16";
    plan_request.cuda_graph = false;
    const LayerGroup all{"all", problem, {0, 1}, 0};
    const auto plan =
        make_model_plan(std::span(&all, 1), describe_machine(Device::cpu), plan_request, registry);
    ASSERT_TRUE(plan);
    auto cache = KvCache::create(*plan, {.budget_bytes = 0, .pages = 9});
    ASSERT_TRUE(cache);
    const FakeModel model(problem);
    FakeSetup setup;
    auto engine = Engine::create(model, *cache, {}, setup.ops());
    ASSERT_TRUE(engine);
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (std::int32_t i = 0; i < 6; ++i) {
      requests.push_back(word_request(words(30 + i, 2 * i), 90, static_cast<unsigned>(i)));
      ids.push_back(*engine->submit(requests.back()));
    }
    const Outcomes got = run(*engine);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(got.at(ids[i]).answer, expected_answer(requests[i], engine->capacity()));
    }
  }
}

}  // namespace
}  // namespace lathe
