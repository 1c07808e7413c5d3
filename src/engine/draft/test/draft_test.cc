// Drafts in the engine, with a model that answers by a formula: they change no token of any
// request, cost other requests nothing, and cost little if they are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "engine/draft/ngram_drafter.h"
#include "engine/draft/test/draft_test_util.h"
#include "engine/test/fake_model_test_util.h"
#include "engine/test/fake_requests_test_util.h"
#include "kernels/philox.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;

// Requests with known answers, for drafters that are right or wrong by request and position.
class Known {
 public:
  using Right = std::function<bool(std::size_t request, std::int64_t place)>;
  Known(std::vector<Request> requests, std::int64_t capacity, Right right)
      : requests_(std::move(requests)), right_(std::move(right)) {
    for (const Request& r : requests_) answers_.push_back(expected_answer(r, capacity));
  }
  const std::vector<Request>& requests() const { return requests_; }
  const Answer& answer(std::size_t i) const { return answers_[i]; }
  ScriptedDrafter drafter() const {
    return ScriptedDrafter([this](const DraftRequest& r, std::int64_t known) {
      const std::size_t i = r.id.value - 1;
      const std::int64_t place = known - std::ssize(requests_[i].prompt);
      const auto& tokens = answers_[i].tokens;
      const std::int32_t next =
          place < std::ssize(tokens) ? tokens[static_cast<std::size_t>(place)] : 0;
      return right_(i, place) ? next : (next + 1) % FakeModel::kNanToken;
    });
  }

 private:
  std::vector<Request> requests_;
  std::vector<Answer> answers_;
  Right right_;
};

void expect_answers(const Served& run, const Known& known) {
  for (std::size_t i = 0; i < known.requests().size(); ++i) {
    EXPECT_EQ(run.answers.at(RequestId{i + 1}), known.answer(i)) << "request " << i;
  }
}

// Right up to a position that differs by request, so that bursts of every length occur.
TEST(EngineDrafts, SampledAnswersAreThoseWithout) {
  std::vector<Request> requests;
  for (std::uint64_t seed = 1; seed <= 64; ++seed) {
    for (int filters = 0; filters < 8; ++filters) {
      Request r = request(5, 16, static_cast<std::int32_t>(seed));
      SamplingParams& p = r.sampling;
      p.seed = seed;
      p.temperature = 0.7f + 0.1f * static_cast<float>(seed % 9);
      if (filters & 1) p.top_k = 12;
      if (filters & 2) p.top_p = 0.85f;
      if (filters & 4) p.min_p = 0.05f;
      requests.push_back(std::move(r));
    }
  }
  FakeSetup setup({.pages = 2048});
  const Known known(std::move(requests), 512, [](std::size_t i, std::int64_t place) {
    return random_bits(i, static_cast<std::uint64_t>(place)) % 4 != 0;
  });
  ScriptedDrafter drafter = known.drafter();
  EngineOptions options;
  options.drafter = &drafter;
  options.draft_tokens = 7;
  options.max_running_requests = 7;
  Engine engine = setup.engine(options);
  const Served run = serve(engine, known.requests());
  expect_answers(run, known);
  const DraftStats& d = run.stats.drafts;
  std::printf("%ld of %ld drafts accepted\n", d.all_accepted(), d.all_drafted());
  EXPECT_GT(d.all_accepted(), 1000);
  EXPECT_GT(d.all_drafted() - d.all_accepted(), 1000);
  EXPECT_GT(d.accepted[4], 100);  // long bursts
}

// Drafts that are never right change no token, so every step must do what it does without drafts:
// admit and preempt the same requests, and leave the same prefixes in the cache.
TEST(EngineDrafts, WrongDraftsTakeNothingFromAnybody) {
  for (const std::int64_t pages : {12, 17, 24, 40}) {
    for (const bool prefix_cache : {true, false}) {
      std::vector<Request> requests;
      for (std::int32_t i = 0; i < 24; ++i) {
        requests.push_back(request(5 + 3 * (i % 5), 8 + 5 * (i % 4), i % 6));
      }
      const Known known(std::move(requests), 4 * pages,
                        [](std::size_t, std::int64_t) { return false; });
      const auto serve_with = [&](Drafter* drafter) {
        FakeSetup setup({.pages = pages});
        EngineOptions options;
        options.chunked_prefill_size = 7;
        options.prefix_cache = prefix_cache;
        options.drafter = drafter;
        options.draft_tokens = 6;
        Engine engine = setup.engine(options);
        return serve(engine, known.requests(), 2, [&] { setup.cache->poison_free(); });
      };
      ScriptedDrafter drafter = known.drafter();
      const Served plain = serve_with(nullptr), drafts = serve_with(&drafter);
      expect_answers(drafts, known);
      EXPECT_GT(drafts.stats.drafts.all_drafted(), 20);
      EXPECT_EQ(drafts.stats.drafts.all_accepted(), 0);
      ASSERT_EQ(drafts.steps.size(), plain.steps.size());
      std::int64_t preemptions = 0;
      for (std::size_t s = 0; s < plain.steps.size(); ++s) {
        const StepReport &a = drafts.steps[s], &b = plain.steps[s];
        SCOPED_TRACE("step " + std::to_string(s));
        ASSERT_EQ(a.tokens.size(), b.tokens.size());
        for (std::size_t i = 0; i < a.tokens.size(); ++i) {
          ASSERT_EQ(a.tokens[i].request, b.tokens[i].request);
        }
        ASSERT_EQ(std::tuple(a.prefill_rows, a.decode_rows, a.admitted, a.cached_tokens,
                             a.preemptions, a.finished.size()),
                  std::tuple(b.prefill_rows, b.decode_rows, b.admitted, b.cached_tokens,
                             b.preemptions, b.finished.size()));
        preemptions += b.preemptions;
      }
      EXPECT_TRUE(pages >= 24 || preemptions > 0) << pages << " pages";
      EXPECT_EQ(plain.stats.cached_tokens > 0, prefix_cache);
    }
  }
}

// Two requests fill the pool to its last page. Drafts get only the room on the requests' last
// pages.
TEST(EngineDrafts, AFullPoolCutsThem) {
  std::vector<Request> requests{request(6, 10), request(6, 10, 9)};
  const Known known(std::move(requests), 32, [](std::size_t, std::int64_t) { return true; });
  ScriptedDrafter drafter = known.drafter();
  FakeSetup setup({.page_size = 4, .pages = 4});  // 8 tokens each, two of them answer
  EngineOptions options;
  options.drafter = &drafter;
  options.draft_tokens = 4;
  Engine engine = setup.engine(options);
  for (const Request& r : known.requests()) ASSERT_TRUE(engine.submit(r));
  ASSERT_TRUE(engine.step());  // prompts, and a token of each: 7 known tokens
  const auto report = engine.step();
  ASSERT_TRUE(report);
  // Page 2 has room for the 7th token and one draft; there is no third page.
  EXPECT_EQ(report->drafted, 2);
  EXPECT_EQ(report->accepted, 2);
  EXPECT_EQ(report->preemptions, 0);
  EXPECT_EQ(engine.stats().held_pages, 4);
}

// Three of eight pages are in the prefix cache from a first request. The second holds up to five,
// and its drafts would need a sixth.
TEST(EngineDrafts, NothingIsEvictedForThem) {
  const Known known({request(13, 1), request(13, 19, 9), request(13, 1)}, 32,
                    [](std::size_t, std::int64_t) { return false; });
  ScriptedDrafter drafter = known.drafter();
  FakeSetup setup({.page_size = 4, .pages = 8});
  EngineOptions options;
  options.drafter = &drafter;
  options.draft_tokens = 12;
  Engine engine = setup.engine(options);
  ASSERT_TRUE(engine.submit(known.requests()[0]));
  serve(engine, {});
  const auto second = engine.submit(known.requests()[1]);
  ASSERT_TRUE(second);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine.step());
  EXPECT_GT(engine.stats().drafts.all_drafted(), 0);
  ASSERT_TRUE(engine.cancel(*second));
  ASSERT_TRUE(engine.submit(known.requests()[2]));
  serve(engine, {});
  EXPECT_EQ(engine.stats().cached_tokens, 12);
}

// An older request preempts a younger one, at each length of the younger one's answer.
TEST(EngineDrafts, APreemptionAtAnyStepLosesNothing) {
  constexpr std::int64_t kPages = 60;
  std::set<std::int64_t> answered;  // tokens of the younger one when it was preempted
  for (const std::int32_t answer : {4, 12, 24}) {
    for (std::int32_t prompt = 10; prompt + answer <= kPages; ++prompt) {
      std::vector<Request> requests{request(3, 40), request(prompt, answer, 9)};
      requests[1].sampling.temperature = 1;
      requests[1].sampling.seed = 3;
      requests[1].sampling.frequency_penalty = 1;
      // Bursts of both requests, with different periods.
      const Known known(std::move(requests), kPages, [](std::size_t i, std::int64_t place) {
        return place % (i == 0 ? 5 : 3) != 0;
      });
      ScriptedDrafter drafter = known.drafter();
      FakeSetup setup({.page_size = 1, .pages = kPages});
      EngineOptions options;
      options.drafter = &drafter;
      options.prefix_cache = prompt % 2 == 0;
      Engine engine = setup.engine(options);
      std::map<RequestId, Answer> answers;
      for (const Request& r : known.requests()) ASSERT_TRUE(engine.submit(r));
      while (!engine.idle()) {
        setup.cache->poison_free();
        const auto report = engine.step();
        ASSERT_TRUE(report);
        if (report->preemptions > 0) answered.insert(std::ssize(answers[RequestId{2}].tokens));
        for (const TokenEvent& e : report->tokens) {
          answers[e.request].tokens.push_back(e.sampled.token);
        }
        for (const Finished& f : report->finished) answers[f.request].reason = f.reason;
      }
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(answers.at(RequestId{i + 1}), known.answer(i)) << prompt << ", " << answer;
      }
      EXPECT_EQ(engine.stats().held_pages, 0);
    }
  }
  for (const std::int64_t n : answered) std::printf("%ld ", n);
  std::printf("tokens when preempted\n");
  EXPECT_GE(answered.size(), 16u);
}

// Requests of one batch have no, one or several drafts each, right or wrong.
TEST(EngineDrafts, EachRequestOfABatchHasItsOwnNumber) {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 6; ++i) requests.push_back(request(4 + i, 18, 3 * i));
  const Known known(std::move(requests), 512,
                    [](std::size_t i, std::int64_t) { return i % 2 == 0; });
  ScriptedDrafter scripted = known.drafter();
  class Ragged : public Drafter {
   public:
    explicit Ragged(Drafter& from) : from_(from) {}
    void propose(std::span<DraftRequest> requests) override {
      from_.propose(requests);
      for (DraftRequest& r : requests) {
        r.drafts.resize(std::min(r.drafts.size(), static_cast<std::size_t>(r.id.value - 1)));
      }
    }
    Drafter& from_;
  } drafter(scripted);
  FakeSetup setup;
  EngineOptions options;
  options.drafter = &drafter;
  options.draft_tokens = 5;
  options.prefix_cache = false;
  Engine engine = setup.engine(options);
  for (const Request& r : known.requests()) ASSERT_TRUE(engine.submit(r));
  ASSERT_TRUE(engine.step());
  const auto report = engine.step();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->decode_rows, 6);
  EXPECT_EQ(report->drafted, 0 + 1 + 2 + 3 + 4 + 5);
  EXPECT_EQ(report->accepted, 2 + 4);
  std::map<RequestId, std::int64_t> tokens;
  for (const TokenEvent& e : report->tokens) ++tokens[e.request];
  std::vector<std::int64_t> counts;
  for (const auto& [id, n] : tokens) counts.push_back(n);
  EXPECT_THAT(counts, ElementsAre(1, 1, 3, 1, 5, 1));
  const Served run = serve(engine, {});
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::ssize(run.answers.at(RequestId{i + 1}).tokens), 18 - 1 - counts[i]);
  }
}

// Counts decide and no clock: the same requests have the same steps.
TEST(EngineDrafts, TheSameRunHasTheSameSteps) {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 12; ++i) requests.push_back(request(5 + i, 60, i));
  const Known known(std::move(requests), 512, [](std::size_t i, std::int64_t place) {
    return random_bits(i, static_cast<std::uint64_t>(place)) % 3 != 0;
  });
  const auto rows = [&] {
    ScriptedDrafter drafter = known.drafter();
    FakeSetup setup({.pages = 512});
    EngineOptions options;
    options.drafter = &drafter;
    options.draft_tokens = 6;
    Engine engine = setup.engine(options);
    std::vector<std::int64_t> out;
    for (const StepReport& s : serve(engine, known.requests(), 3).steps) {
      out.insert(out.end(), {s.decode_rows, s.drafted, s.accepted});
    }
    return out;
  };
  EXPECT_EQ(rows(), rows());
}

// Drafts that are always wrong add less than 3 % of rows, once lengths have adapted. A step costs
// at most in proportion to its rows.
TEST(EngineDrafts, WrongDraftsSoonCostLittle) {
  const Known known({request(5, 1000)}, 1024, [](std::size_t, std::int64_t) { return false; });
  ScriptedDrafter drafter = known.drafter();
  FakeSetup setup({.pages = 512, .context_length = 1024, .max_rows = 1024});
  EngineOptions options;
  options.drafter = &drafter;
  options.draft_tokens = 4;
  Engine engine = setup.engine(options);
  const Served run = serve(engine, known.requests());
  expect_answers(run, known);
  ASSERT_EQ(std::ssize(run.steps), 1000);
  std::int64_t early = 0, late = 0;
  for (std::size_t s = 0; s < run.steps.size(); ++s)
    (s < 100 ? early : late) += run.steps[s].drafted;
  std::printf("%ld drafts in 100 steps, %ld in 900\n", early, late);
  EXPECT_LE(early, 40);
  EXPECT_LE(late, 0.03 * 900);
  EXPECT_GT(late, 0);  // probes go on, as drafts may become right
}

// A drafter that is always wrong reads an answer's rows in runs: each row once, in order, with the
// row's own hidden state, however long it has waited and whichever requests have come since.
TEST(EngineDrafts, RowsWaitForADrafterThatGuessesWrongly) {
  const std::vector<std::int32_t> answers = {700, 130, 400, 64, 65};
  FakeSetup setup({.pages = 1024, .context_length = 1024, .max_rows = 1024});
  ReadingDrafter drafter([](const DraftRequest&, std::int64_t) { return 0; }, *setup.backend,
                         setup.plan);
  EngineOptions options;
  options.drafter = &drafter;
  Engine engine = setup.engine(options);
  std::size_t submitted = 0;
  std::int64_t steps = 0;
  for (; submitted < answers.size() || !engine.idle(); ++steps) {
    if (submitted < answers.size() && steps == static_cast<std::int64_t>(60 * submitted)) {
      ASSERT_TRUE(engine.submit(request(3, answers[submitted++])));
    }
    ASSERT_TRUE(engine.step());
  }
  std::int64_t rows = 0;
  for (const std::int32_t n : answers) rows += 3 + n - 1;
  EXPECT_GE(drafter.rows, rows - kUnreadRows * std::ssize(answers));
  EXPECT_LT(drafter.reads, steps / 5);
}

}  // namespace
}  // namespace lathe
