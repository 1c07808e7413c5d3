// Clients share places, pages and prefill rows evenly, a client's requests go by priority, and only
// equal salts share cached prompts. Time is counted in steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/draft/test/model_drafter_test_util.h"
#include "engine/test/fake_requests_test_util.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request of(std::uint64_t client, Request r, std::int32_t priority = 0) {
  r.client = client;
  r.priority = priority;
  return r;
}

void run_steps(Engine& engine, int steps) {
  for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step());
}

// Steps until a request's first token is reported.
int steps_to_first(Engine& engine, RequestId id) {
  for (int steps = 1; steps < 1000; ++steps) {
    const auto report = engine.step();
    EXPECT_TRUE(report);
    if (!report) break;
    for (const TokenEvent& e : report->tokens) {
      if (e.request == id) return steps;
    }
  }
  return 1000;
}

// Gives each request's tokens as they come, and checks them against the model's formula at the end.
class Watched {
 public:
  explicit Watched(Engine& engine) : engine_(engine) {}
  RequestId submit(const Request& r) {
    const auto id = engine_.submit(r);
    EXPECT_TRUE(id) << id.error().message();
    requests_.emplace(*id, r);
    return *id;
  }
  StepReport step() {
    auto report = engine_.step();
    EXPECT_TRUE(report);
    for (const TokenEvent& e : report->tokens) {
      answers_[e.request].push_back(e.sampled.token);
    }
    for (const Finished& f : report->finished) ended.push_back(f.request);
    return std::move(*report);
  }
  bool has_token(RequestId id) const { return answers_.contains(id); }
  void finish() {
    for (int i = 0; i < 20000 && !engine_.idle(); ++i) step();
    ASSERT_TRUE(engine_.idle());
    for (const auto& [id, r] : requests_) {
      EXPECT_EQ(answers_[id], expected_answer(r, engine_.capacity()).tokens) << id.value;
    }
    EXPECT_EQ(engine_.stats().held_pages, 0);
  }
  std::vector<RequestId> ended;

 private:
  Engine& engine_;
  std::map<RequestId, Request> requests_;
  std::map<RequestId, std::vector<std::int32_t>> answers_;
};

// One client's 128 choices of 300 tokens have all places. Another's request has its first token in
// the second step at the latest, and both get the tokens that they get alone.
TEST(Clients, ManyChoicesDelayNobodyElse) {
  FakeSetup setup({.pages = 4000, .max_requests = 24});
  Engine engine = setup.engine();
  Watched watched(engine);
  Request choice = of(1, request(40, 300));
  for (int i = 0; i < 128; ++i) {
    const RequestId id = watched.submit(choice);
    if (i == 0) choice.sibling_of = id;
  }
  for (int i = 0; i < 5; ++i) watched.step();
  EXPECT_EQ(engine.stats().running, 24);
  for (const std::uint64_t other : {2, 3, 4}) {
    const RequestId id = watched.submit(of(other, request(20, 5, 7)));
    watched.step();
    if (!watched.has_token(id)) watched.step();
    EXPECT_TRUE(watched.has_token(id));
  }
  EXPECT_EQ(engine.stats().running, 24);
  watched.finish();
}

// One client's prompts have more rows than 50 steps compute.
TEST(Clients, LongPromptsDelayNobodyElse) {
  FakeSetup setup({.pages = 4000, .max_rows = 32});
  Engine engine = setup.engine();
  Watched watched(engine);
  for (int i = 0; i < 8; ++i) watched.submit(of(1, request(400, 3, 1 + i)));
  for (int i = 0; i < 4; ++i) watched.step();
  const RequestId id = watched.submit(of(2, request(16, 3, 30)));
  watched.step();
  if (!watched.has_token(id)) watched.step();
  EXPECT_TRUE(watched.has_token(id));
  // No row of a step stays unused.
  EXPECT_EQ(watched.step().prefill_rows, 32);
  watched.finish();
}

// A client whose requests hold all pages gives up its last ones.
TEST(Clients, PagesAreShared) {
  FakeSetup setup({.pages = 60});
  Engine engine = setup.engine();
  Watched watched(engine);
  for (int i = 0; i < 6; ++i) watched.submit(of(1, request(30, 60, 1 + i)));
  for (int i = 0; i < 12; ++i) watched.step();
  const RequestId id = watched.submit(of(2, request(60, 5, 30)));
  watched.step();
  if (!watched.has_token(id)) watched.step();
  EXPECT_TRUE(watched.has_token(id));
  watched.finish();
}

// With one place, the second client waits for the first one's request: they do not take turns at
// it. Then it goes before the first one's other requests.
TEST(Clients, APlaceIsNotTakenBackAndForth) {
  FakeSetup setup;
  EngineOptions options;
  options.max_running_requests = 1;
  Engine engine = setup.engine(options);
  Watched watched(engine);
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(watched.submit(of(1, request(5, 10, 1 + i))));
  watched.step();
  ids.push_back(watched.submit(of(2, request(5, 10, 9))));
  watched.finish();
  EXPECT_EQ(engine.stats().preemptions, 0);
  EXPECT_THAT(watched.ended, ElementsAre(ids[0], ids[3], ids[1], ids[2]));
}

// Requests of one client are as before: in order of arrival, whatever its number.
TEST(Clients, OneClientIsServedInOrder) {
  FakeSetup setup;
  EngineOptions options;
  options.max_running_requests = 2;
  Engine engine = setup.engine(options);
  Watched watched(engine);
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(watched.submit(of(77, request(5, 4 + i, 1 + i))));
  watched.finish();
  EXPECT_EQ(watched.ended, ids);
}

// A step that is in flight, and the one launched after it, run first.
TEST(Clients, AStepAheadDelaysByOneStep) {
  FakeSetup setup({.pages = 4000, .max_requests = 8, .late = true, .overlaps = true});
  Engine engine = setup.engine();
  std::vector<RequestId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(*engine.submit(of(1, request(20, 200, 1 + i))));
  run_steps(engine, 8);
  ASSERT_TRUE(engine.in_flight());
  const RequestId id = *engine.submit(of(2, request(20, 5, 9)));
  EXPECT_LE(steps_to_first(engine, id), 2);
}

TEST(Priorities, LowerOnesGoFirst) {
  FakeSetup setup;
  EngineOptions options;
  options.max_running_requests = 1;
  options.priorities = true;
  Engine engine = setup.engine(options);
  Watched watched(engine);
  std::vector<RequestId> ids;
  for (const std::int32_t priority : {0, 5, -2, 5, 1}) {
    ids.push_back(watched.submit(of(1, request(5, 4, 9), priority)));
  }
  watched.finish();
  EXPECT_THAT(watched.ended, ElementsAre(ids[2], ids[0], ids[4], ids[1], ids[3]));
}

// Without pages for all, the request of the highest number is preempted, even if it is the oldest.
TEST(Priorities, TheLastInOrderIsPreempted) {
  FakeSetup setup({.pages = 20});
  EngineOptions options;
  options.priorities = true;
  Engine engine = setup.engine(options);
  Watched watched(engine);
  const RequestId last = watched.submit(of(1, request(20, 40, 1), 3));
  watched.step();
  watched.submit(of(1, request(20, 40, 9), 0));
  while (engine.stats().preemptions == 0 && !engine.idle()) watched.step();
  EXPECT_EQ(engine.state(last), RequestState::preempted);
  watched.finish();
}

// New requests come at every step and go before an old one, but only until it has aged.
TEST(Priorities, NothingStarves) {
  FakeSetup setup;
  EngineOptions options;
  options.max_running_requests = 1;
  options.priorities = true;
  options.priority_aging = 10;
  Engine engine = setup.engine(options);
  Watched watched(engine);
  watched.submit(of(1, request(4, 3)));
  const RequestId old = watched.submit(of(1, request(4, 3), 4));
  int steps = 0;
  for (; steps < 300 && !watched.has_token(old); ++steps) {
    watched.submit(of(1, request(4, 3)));
    watched.step();
  }
  EXPECT_GT(steps, 40);
  EXPECT_LT(steps, 40 * 4);
  watched.finish();
}

TEST(Priorities, AreRefusedWithoutTheOption) {
  FakeSetup setup;
  Engine engine = setup.engine();
  const auto id = engine.submit(of(1, request(4, 3), 1));
  ASSERT_FALSE(id);
  EXPECT_THAT(id.error().message(), HasSubstr("priority"));
  EXPECT_THAT(id.error().message(), HasSubstr("--scheduling-policy priority"));
  EXPECT_TRUE(engine.idle());
}

std::int64_t cached(Engine& engine, std::uint64_t salt) {
  Request r = request(60, 4);
  r.cache_salt = salt;
  const Served run = serve(engine, {r});
  EXPECT_EQ(run.answers.begin()->second, expected_answer(r, engine.capacity()));
  std::int64_t out = 0;
  for (const StepReport& s : run.steps) out += s.cached_tokens;
  return out;
}

// In pages, a window's pages and states.
TEST(CacheSalt, UnequalSaltsShareNothing) {
  for (const auto& options :
       {FakeOptions{}, FakeOptions{.window = 6}, FakeOptions{.window = 6, .state = true}}) {
    FakeSetup setup(options);
    Engine engine = setup.engine();
    for (const std::uint64_t salt : {0, 1, 2}) {
      EXPECT_EQ(cached(engine, salt), 0);
      EXPECT_GT(cached(engine, salt), 40);
    }
    EXPECT_GT(cached(engine, 0), 40);
    engine.clear_prefix_cache();
    EXPECT_EQ(engine.stats().prefix_cache_tokens, 0);
  }
}

// A preempted request finds its own pages again.
TEST(CacheSalt, APreemptedRequestFindsItsPages) {
  FakeSetup setup({.pages = 24});
  Engine engine = setup.engine();
  std::vector<Request> requests{request(30, 40, 1), request(30, 40, 1)};
  requests[0].cache_salt = 1;
  requests[1].cache_salt = 2;
  const Served run = serve(engine, requests);
  std::int64_t preemptions = 0;
  for (const StepReport& s : run.steps) {
    preemptions += s.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  std::size_t i = 0;
  for (const auto& [id, answer] : run.answers) {
    EXPECT_EQ(answer, expected_answer(requests[i++], engine.capacity()));
  }
}

// A draft model's cached keys, too: with another salt it computes the prompt's rows again.
TEST(CacheSalt, ADraftModelSharesNothing) {
  FakeSetup setup;
  Draft draft({});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 3;
  Engine engine = setup.engine(options);
  const auto rows = [&](std::uint64_t salt) {
    const std::int64_t before = draft.inner.rows();
    cached(engine, salt);
    return draft.inner.rows() - before;
  };
  const std::int64_t cold = rows(1);
  EXPECT_GE(cold, 60);
  EXPECT_LT(rows(1), 30);
  EXPECT_EQ(rows(2), cold);
}

}  // namespace
}  // namespace lathe
