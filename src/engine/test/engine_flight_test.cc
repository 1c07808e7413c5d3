// The engine with steps in flight: a backend that finishes late, and calls before it does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "attn/draft_rows.h"
#include "engine/draft/test/draft_test_util.h"
#include "engine/test/fake_model_test_util.h"
#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Request flight_request(std::int32_t prompt, std::int32_t answer, std::uint64_t seed) {
  Request r;
  for (std::int32_t i = 0; i < prompt; ++i) {
    r.prompt.push_back((static_cast<std::int32_t>(seed) + i * 11) % FakeModel::kNanToken);
  }
  r.sampling.seed = seed;
  r.sampling.max_tokens = answer;
  r.sampling.ignore_eos = true;
  r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
  return r;
}

struct Scene {
  FakeSetup setup;
  Engine engine;
  std::map<RequestId, std::vector<std::int32_t>> tokens;
  std::map<RequestId, Finished> finished;

  explicit Scene(const EngineOptions& options = {}, std::int64_t pages = 64, bool overlaps = false)
      : setup({.pages = pages, .late = true, .overlaps = overlaps}),
        engine(setup.engine(options)) {}

  void launch() { ASSERT_TRUE(engine.launch()); }
  void collect() { take(engine.collect()); }
  void step() { take(engine.step()); }
  void take(const Result<StepReport>& report) {
    ASSERT_TRUE(report) << report.error().message();
    for (const TokenEvent& e : report->tokens) tokens[e.request].push_back(e.sampled.token);
    for (const Finished& f : report->finished) finished[f.request] = f;
  }
  void finish() {
    for (int i = 0; i < 1000 && !engine.idle(); ++i) step();
    ASSERT_TRUE(engine.idle());
  }
  void expect_answer(RequestId id, const Request& r) {
    EXPECT_EQ(tokens[id], expected_answer(r, engine.capacity()).tokens);
  }
  void expect_nothing_held() {
    EXPECT_EQ(engine.stats().held_pages, 0);
    engine.clear_prefix_cache();
    EXPECT_EQ(setup.cache->ledger().used(), 0);
  }
};

TEST(EngineFlight, NothingHappensBeforeCollect) {
  Scene s;
  const Request r = flight_request(6, 3, 1);
  const RequestId id = *s.engine.submit(r);
  s.launch();
  EXPECT_TRUE(s.engine.in_flight());
  EXPECT_FALSE(s.engine.idle());
  EXPECT_GT(s.setup.late->pending(), 0u);
  EXPECT_EQ(s.engine.stats().steps, 0);
  EXPECT_EQ(s.engine.state(id), RequestState::running);
  s.collect();
  EXPECT_FALSE(s.engine.in_flight());
  EXPECT_EQ(s.engine.stats().steps, 1);
  EXPECT_EQ(s.engine.stats().prefill_rows, 6);
  EXPECT_EQ(s.tokens[id].size(), 1u);
  s.finish();
  s.expect_answer(id, r);
  s.expect_nothing_held();
}

TEST(EngineFlight, ARequestSubmittedMeanwhileWaitsForTheNextStep) {
  Scene s;
  const Request first = flight_request(6, 5, 1), second = flight_request(9, 5, 2);
  const RequestId a = *s.engine.submit(first);
  s.launch();
  const RequestId b = *s.engine.submit(second);
  EXPECT_EQ(s.engine.state(b), RequestState::waiting);
  EXPECT_EQ(s.engine.stats().waiting, 1);
  EXPECT_FALSE(s.engine.submit(Request{}));
  s.collect();
  EXPECT_EQ(s.engine.state(b), RequestState::waiting);
  EXPECT_THAT(s.tokens[b], IsEmpty());
  s.finish();
  s.expect_answer(a, first);
  s.expect_answer(b, second);
}

// A request is cancelled in flight: the step still writes to its pages, and its token is dropped.
TEST(EngineFlight, ACancelledRequestKeepsItsPagesUntilCollect) {
  for (const std::int32_t steps : {0, 1, 3}) {
    Scene s;
    const Request first = flight_request(6, 9, 1), second = flight_request(7, 9, 2);
    const RequestId a = *s.engine.submit(first);
    const RequestId b = *s.engine.submit(second);
    for (std::int32_t i = 0; i < steps; ++i) {
      s.launch();
      s.collect();
    }
    s.launch();
    const std::int64_t held = s.engine.stats().held_pages;
    ASSERT_TRUE(s.engine.cancel(a));
    EXPECT_FALSE(s.engine.cancel(a));
    EXPECT_EQ(s.engine.state(a), RequestState::finished);
    EXPECT_EQ(s.engine.stats().running, 1);
    EXPECT_EQ(s.engine.stats().finished, 1);
    EXPECT_EQ(s.engine.stats().held_pages, held);
    s.setup.cache->poison_free();
    s.engine.clear_prefix_cache();
    s.collect();
    ASSERT_TRUE(s.finished.contains(a));
    EXPECT_EQ(s.finished[a].reason, FinishReason::cancelled);
    EXPECT_EQ(s.finished[a].answer_tokens, steps);
    EXPECT_EQ(std::ssize(s.tokens[a]), steps);
    EXPECT_LT(s.engine.stats().held_pages, held);
    s.finish();
    s.expect_answer(b, second);
    s.expect_nothing_held();
  }
}

TEST(EngineFlight, TheLastRequestCancelledLeavesAStepToCollect) {
  Scene s;
  const RequestId id = *s.engine.submit(flight_request(6, 9, 1));
  s.launch();
  ASSERT_TRUE(s.engine.cancel(id, FinishReason::stop));
  EXPECT_FALSE(s.engine.idle());
  s.collect();
  EXPECT_EQ(s.finished[id].reason, FinishReason::stop);
  EXPECT_TRUE(s.engine.idle());
  s.expect_nothing_held();
  // Keys without a token do not enter the prefix cache (E9).
  EXPECT_EQ(s.engine.stats().cached_tokens, 0);
}

// E9 for a device error after half of the step has run.
TEST(EngineFlight, AStepThatFailsInFlightCanBeRepeated) {
  Scene s({.chunked_prefill_size = 5});
  const Request first = flight_request(9, 6, 1), second = flight_request(8, 6, 2),
                third = flight_request(4, 6, 3);
  const RequestId a = *s.engine.submit(first);
  const RequestId b = *s.engine.submit(second);
  const RequestId c = *s.engine.submit(third);
  bool cancelled = false;
  for (int i = 0; !s.engine.idle(); ++i) {
    s.launch();
    if (i % 2 == 1) {
      s.collect();
      continue;
    }
    s.setup.late->fail_next = true;
    const std::int64_t steps = s.engine.stats().steps;
    if (i == 6) cancelled = s.engine.cancel(c);
    const auto failed = s.engine.collect();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().field, "device");
    EXPECT_FALSE(s.engine.in_flight());
    EXPECT_EQ(s.engine.stats().steps, steps);
    s.setup.cache->poison_free();
  }
  s.expect_answer(a, first);
  s.expect_answer(b, second);
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(s.finished[c].reason, FinishReason::cancelled);
  s.expect_nothing_held();
}

TEST(EngineFlight, AStepThatDoesNotStartLeavesNothingInFlight) {
  Scene s;
  const Request r = flight_request(6, 3, 1);
  const RequestId id = *s.engine.submit(r);
  s.setup.model->fail_next = true;
  EXPECT_FALSE(s.engine.launch());
  EXPECT_FALSE(s.engine.in_flight());
  const auto report = s.engine.collect();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->step, 0);
  EXPECT_EQ(report->prefill_rows, 0);
  s.finish();
  s.expect_answer(id, r);
}

TEST(EngineFlight, AnEngineThatGoesWaitsForItsStep) {
  FakeSetup setup({.late = true});
  {
    Engine engine = setup.engine();
    ASSERT_TRUE(engine.submit(flight_request(6, 3, 1)));
    ASSERT_TRUE(engine.launch());
    EXPECT_GT(setup.late->pending(), 0u);
  }
  EXPECT_EQ(setup.late->pending(), 0u);
}

// The next step reads the token that the step in flight samples, before the host knows it.
TEST(EngineFlight, ADecodeStepStartsBehindAnother) {
  Scene s({}, 64, true);
  const Request first = flight_request(6, 5, 1), second = flight_request(9, 8, 2);
  const RequestId a = *s.engine.submit(first);
  const RequestId b = *s.engine.submit(second);
  s.step();  // the prompts
  EXPECT_FALSE(s.engine.in_flight());
  for (std::size_t tokens = 2; tokens <= 7; ++tokens) {
    s.step();
    EXPECT_TRUE(s.engine.in_flight()) << tokens;
    EXPECT_EQ(s.tokens[a].size(), std::min<std::size_t>(tokens, 5));
    EXPECT_EQ(s.tokens[b].size(), tokens);
  }
  s.step();
  EXPECT_TRUE(s.engine.idle());
  s.expect_answer(a, first);
  s.expect_answer(b, second);
  // An answer that ends by its length has no row in the step after its last one.
  EXPECT_EQ(s.engine.stats().steps, 8);
  EXPECT_EQ(s.engine.stats().decode_rows, 4 + 7);
  s.expect_nothing_held();
}

// A request ends while the next step has a row of it, which still writes to its pages.
TEST(EngineFlight, AnAnswerThatStopsKeepsItsPagesForTheStepBehind) {
  Request r = flight_request(6, 12, 1);
  const std::vector<std::int32_t> whole = expected_answer(r, 100).tokens;
  r.sampling.stop_token_ids = {whole[5]};
  const Answer expected = expected_answer(r, 100);
  ASSERT_EQ(expected.reason, FinishReason::stop);
  Scene s({}, 64, true);
  const RequestId id = *s.engine.submit(r);
  while (!s.finished.contains(id)) s.step();
  EXPECT_EQ(s.engine.state(id), RequestState::finished);
  EXPECT_EQ(s.finished[id].answer_tokens, std::ssize(expected.tokens));
  EXPECT_TRUE(s.engine.in_flight());
  EXPECT_FALSE(s.engine.idle());
  EXPECT_GT(s.engine.stats().held_pages, 0);
  s.setup.cache->poison_free();
  s.step();
  EXPECT_TRUE(s.engine.idle());
  EXPECT_EQ(s.tokens[id], expected.tokens);
  s.expect_nothing_held();
}

// The next step has already replaced the state after the answer's last token. If a block ends
// there, the prefix cache gets the state before that.
TEST(EngineFlight, AnAnswerThatStopsLeavesItsLastStateToOthers) {
  std::int64_t cached = 0;
  for (std::size_t last = 1; last < 12; ++last) {
    SCOPED_TRACE(last);
    Request r = flight_request(6, 20, 1);
    std::vector<std::int32_t> whole = expected_answer(r, 100).tokens;
    r.sampling.stop_token_ids = {whole[last]};
    FakeSetup setup({.pages = 64, .state = true, .late = true, .overlaps = true});
    Engine engine = setup.engine();
    std::map<RequestId, std::vector<std::int32_t>> tokens;
    const auto serve = [&](const Request& request) {
      const RequestId id = *engine.submit(request);
      while (!engine.idle()) {
        const auto report = engine.step();
        ASSERT_TRUE(report);
        cached += report->cached_tokens;
        for (const TokenEvent& e : report->tokens) tokens[e.request].push_back(e.sampled.token);
      }
      EXPECT_EQ(tokens[id], expected_answer(request, engine.capacity()).tokens);
    };
    serve(r);
    Request next = flight_request(6, 5, 1);
    next.prompt.insert(next.prompt.end(), whole.begin(), whole.begin() + 12);
    serve(next);
  }
  EXPECT_GT(cached, 0);
}

// The next step must wait for results if a waiting request could be admitted, or if sampling reads
// earlier tokens.
TEST(EngineFlight, NoStepStartsBehindOneThatDecidesMoreThanTokens) {
  const auto runs_ahead = [](const Request& r, const EngineOptions& options, bool another) {
    Scene s(options, 64, true);
    EXPECT_TRUE(s.engine.submit(r));
    s.step();
    s.launch();
    if (another) {
      EXPECT_TRUE(s.engine.submit(flight_request(4, 3, 9)));
    }
    s.engine.launch_ahead();
    const bool ahead = s.engine.in_flight_ahead();
    s.finish();
    return ahead;
  };
  const Request r = flight_request(6, 9, 1);
  EXPECT_TRUE(runs_ahead(r, {}, false));
  EXPECT_FALSE(runs_ahead(r, {.overlap = false}, false));
  EXPECT_FALSE(runs_ahead(r, {}, true));
  EXPECT_TRUE(runs_ahead(r, {.max_running_requests = 1}, true));
  EXPECT_FALSE(runs_ahead(flight_request(6, 2, 1), {}, false));
  Request penalised = r;
  penalised.sampling.presence_penalty = 0.5f;
  EXPECT_FALSE(runs_ahead(penalised, {}, false));
}

// So many requests run that none has drafts, and the drafter misses their rows. Then some end while
// two steps are in flight, and the later one has overwritten the rows that drafts would need. The
// others have no drafts from then on, so steps still start before results.
TEST(EngineFlight, StepsStartBehindOthersWhereADrafterRests) {
  FakeSetup setup({.pages = 700, .max_requests = 70, .late = true, .overlaps = true});
  std::map<RequestId, Answer> expected;
  const auto right = [&](const DraftRequest& r, std::int64_t known) {
    const std::vector<std::int32_t>& tokens = expected.at(r.id).tokens;
    const auto at = static_cast<std::size_t>(known - 5);
    return at < tokens.size() ? tokens[at] : 0;
  };
  ReadingDrafter drafter(right, *setup.backend, setup.plan);
  Engine engine = setup.engine({.drafter = &drafter});
  std::map<RequestId, std::vector<std::int32_t>> tokens;
  std::vector<RequestId> ids;
  for (std::int32_t i = 0; i < 68; ++i) {
    const Request r = flight_request(5, 10 + i % 9, static_cast<std::uint64_t>(i));
    ids.push_back(*engine.submit(r));
    expected.emplace(ids.back(), expected_answer(r, engine.capacity()));
  }
  int behind = 0, behind_with_few = 0;
  for (int step = 0; !engine.idle(); ++step) {
    if (!engine.in_flight()) {
      ASSERT_TRUE(engine.launch());
    }
    engine.launch_ahead();
    behind += engine.in_flight_ahead();
    behind_with_few += engine.in_flight_ahead() && drafts_at(engine.stats().running) > 0;
    if (step == 1) {
      for (std::size_t i = 0; i < 8; ++i) ASSERT_TRUE(engine.cancel(ids[i * 8]));
      setup.late->run_some(setup.late->pending());
    }
    const auto report = engine.collect();
    ASSERT_TRUE(report);
    for (const TokenEvent& e : report->tokens) tokens[e.request].push_back(e.sampled.token);
  }
  EXPECT_GE(behind, 1);
  EXPECT_GE(behind_with_few, 5);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i % 8 == 0 && i < 64) continue;
    EXPECT_EQ(tokens[ids[i]], expected.at(ids[i]).tokens) << i;
  }
  EXPECT_GT(drafter.rows, 0);
}

// If all drafts of ten requests are wrong, some steps have none, so that the next step can start
// before their results. Right drafts go on.
TEST(EngineFlight, ABatchWithoutRightGuessesStopsAskingForThem) {
  for (const bool good : {false, true}) {
    SCOPED_TRACE(good);
    FakeSetup setup({.pages = 400, .max_requests = 16, .late = true, .overlaps = true});
    std::map<RequestId, Answer> expected;
    ScriptedDrafter drafter([&](const DraftRequest& r, std::int64_t known) {
      const std::vector<std::int32_t>& tokens = expected.at(r.id).tokens;
      const auto at = static_cast<std::size_t>(known - 5);
      const std::int32_t right = at < tokens.size() ? tokens[at] : 0;
      return good ? right : (right + 1) % FakeModel::kNanToken;
    });
    Engine engine = setup.engine({.drafter = &drafter, .draft_tokens = 1});
    std::map<RequestId, std::vector<std::int32_t>> tokens;
    for (std::int32_t i = 0; i < 10; ++i) {
      const Request r = flight_request(5, 60, static_cast<std::uint64_t>(i));
      const RequestId id = *engine.submit(r);
      expected.emplace(id, expected_answer(r, engine.capacity()));
    }
    int steps = 0, behind = 0;
    for (; !engine.idle(); ++steps) {
      const auto report = engine.step();
      ASSERT_TRUE(report);
      behind += engine.in_flight();
      for (const TokenEvent& e : report->tokens) tokens[e.request].push_back(e.sampled.token);
    }
    for (const auto& [id, answer] : expected) EXPECT_EQ(tokens[id], answer.tokens);
    if (good) {
      EXPECT_LE(steps, 40);
      EXPECT_EQ(behind, 0);
    } else {
      EXPECT_GE(behind, 50);  // of 60
      EXPECT_LE(drafter.proposed, 40);
    }
  }
}

// E9: whichever of two steps in flight fails, both are void.
TEST(EngineFlight, AStepThatFailsTakesTheOneBehindItAlong) {
  for (const bool older : {true, false}) {
    Scene s({}, 64, true);
    const Request first = flight_request(6, 9, 1), second = flight_request(7, 9, 2);
    const RequestId a = *s.engine.submit(first);
    const RequestId b = *s.engine.submit(second);
    s.step();
    s.step();
    s.step();
    ASSERT_TRUE(s.engine.in_flight());
    const std::int64_t steps = s.engine.stats().steps;
    (older ? s.setup.late->fail_next : s.setup.model->fail_late) = true;
    auto report = s.engine.step();
    EXPECT_EQ(report.ok(), !older);
    if (!older) {
      s.take(report);
      report = s.engine.step();
      EXPECT_FALSE(report);
    }
    EXPECT_FALSE(s.engine.in_flight());
    EXPECT_EQ(s.engine.stats().steps, steps + !older);
    s.setup.cache->poison_free();
    s.finish();
    s.expect_answer(a, first);
    s.expect_answer(b, second);
    s.expect_nothing_held();
  }
}

// With a whole model, the engine reads no operator's result before it collects the step, and leaves
// the step's inputs in place.
TEST(EngineFlight, AModelOnALateBackendGivesTheSameAnswers) {
  for (const char* name : {"qwen3_moe", "deepseek_v3_fp8", "deepseek_v32"}) {
    const auto model = load_real(name);
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 4; ++i) {
      requests.push_back(greedy(make_prompt(*model, 20 + 30 * i, i, 17), 20));
      requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      requests.back().sampling.seed = static_cast<std::uint64_t>(i);
    }
    for (const char* kind : {"inplace", "auto"}) {
      std::vector<RealAnswer> answers[2];
      for (const bool late : {false, true}) {
        RealSetup setup(*model, {.prefill = kind, .decode = kind, .late = late});
        Engine engine = setup.engine({.chunked_prefill_size = 40, .debug_nan = false});
        answers[late] = serve_real(engine, requests);
      }
      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_TRUE(same(answers[1][i], answers[0][i])) << name << " " << kind << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
