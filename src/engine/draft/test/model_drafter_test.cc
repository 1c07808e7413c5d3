// A draft model for a FakeModel. If it is the same model, it samples what the target samples,
// whatever the parameters. So a wrong draft shows that a key was lost, written to another place, or
// kept for another token.
#include "engine/draft/model_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <tuple>

#include "base/test_scale.h"
#include "engine/draft/test/model_drafter_test_util.h"
#include "engine/test/fake_model_test_util.h"
#include "engine/test/fake_requests_test_util.h"

namespace lathe {
namespace {

using testing::HasSubstr;

// Greedy and sampled requests, with filters and penalties, in turn.
std::vector<Request> mixed_requests(std::int32_t n, std::int32_t longest = 30) {
  std::vector<Request> out;
  for (std::int32_t i = 0; i < n; ++i) {
    Request r = request(1 + (i * 7) % longest, 4 + (i * 5) % 24, i % 5);
    SamplingParams& p = r.sampling;
    p.seed = static_cast<std::uint64_t>(i + 1);
    if (i % 2 == 1) p.temperature = 0.7f + 0.1f * static_cast<float>(i % 9);
    if (i % 3 == 1) p.top_k = 12;
    if (i % 5 == 1) p.top_p = 0.85f;
    if (i % 7 == 1) p.min_p = 0.05f;
    if (i % 4 == 2) p.frequency_penalty = 0.5f;
    if (i % 4 == 3) p.repetition_penalty = 1.3f;
    out.push_back(std::move(r));
  }
  return out;
}

void expect_answers(const Served& run, const std::vector<Request>& requests,
                    std::int64_t capacity) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.answers.at(RequestId{i + 1}), expected_answer(requests[i], capacity))
        << "request " << i;
  }
}

// Chunks, pages, windows, a prefix cache and preemption in both models. All drafts are right,
// except after a token that was sampled with min_tokens or a constraint.
TEST(ModelDrafter, TheSameModelIsAlwaysRight) {
  std::int64_t accepted = 0, preemptions = 0, cached = 0;
  for (const std::int32_t window : {0, 5}) {
    for (const bool prefix_cache : {true, false}) {
      for (const std::int64_t chunk : {1, 3, 16, 64}) {
        for (const std::int64_t most : {1, 2, 5, 12}) {
          SCOPED_TRACE(testing::Message()
                       << "window " << window << ", prefix cache " << prefix_cache << ", chunk "
                       << chunk << ", most " << most);
          const std::vector<Request> requests = mixed_requests(18);
          FakeSetup setup({.page_size = 2, .pages = 48});
          Draft draft({.page_size = 3, .pages = 200, .window = window, .window_page_size = 2},
                      {.prefill_rows = chunk, .prefix_cache = prefix_cache});
          EngineOptions options;
          options.chunked_prefill_size = chunk;
          options.max_running_requests = 6;
          options.prefix_cache = prefix_cache;
          options.drafter = &draft;
          options.draft_tokens = most;
          Engine engine = setup.engine(options);
          const Served run = serve(engine, requests, 2);
          expect_answers(run, requests, engine.capacity());
          const DraftStats& d = run.stats.drafts;
          EXPECT_GT(d.all_drafted(), 50);
          EXPECT_EQ(d.all_accepted(), d.all_drafted());
          accepted += d.all_accepted();
          preemptions += run.stats.preemptions;
          cached += run.stats.cached_tokens;
          expect_nothing_held(draft);
        }
      }
    }
  }
  std::printf("%ld drafts, %ld preemptions, %ld cached tokens\n", accepted, preemptions, cached);
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(cached, 100);
}

// The first, the last or a middle one of several drafts is wrong. The next drafts are right again,
// so nothing of a rejected draft was kept.
TEST(ModelDrafter, GoesOnBehindRejectedDrafts) {
  const std::vector<Request> requests = mixed_requests(12);
  for (const std::size_t wrong : {0u, 1u, 2u, 3u}) {
    for (const std::int32_t window : {0, 4}) {
      FakeSetup setup;
      Draft draft({.page_size = 2, .window = window, .window_page_size = 1});
      std::int64_t spoiled = 0;
      draft.change = [&](DraftRequest& r) {
        if (r.drafts.size() <= wrong || r.tokens.size() % 3 == 0) return;
        r.drafts[wrong] = (r.drafts[wrong] + 1) % FakeModel::kNanToken;
        spoiled += static_cast<std::int64_t>(r.drafts.size() - wrong);
      };
      EngineOptions options;
      options.drafter = &draft;
      options.draft_tokens = 4;
      Engine engine = setup.engine(options);
      const Served run = serve(engine, requests);
      expect_answers(run, requests, engine.capacity());
      const DraftStats& d = run.stats.drafts;
      EXPECT_GT(spoiled, 2);
      EXPECT_GE(d.all_accepted(), d.all_drafted() - spoiled);
      expect_nothing_held(draft);
    }
  }
}

// Keys of accepted drafts stay. After a prompt the draft model computes one row for each token that
// was sampled without a draft and one for each draft, and none twice.
TEST(ModelDrafter, ComputesNoRowTwice) {
  FakeSetup setup;
  Draft draft({}, {.prefill_rows = 16});
  EngineOptions options;
  options.chunked_prefill_size = 16;
  options.drafter = &draft;
  options.draft_tokens = 3;
  Engine engine = setup.engine(options);
  const std::vector<Request> requests{request(50, 30)};
  const Served run = serve(engine, requests);
  expect_answers(run, requests, engine.capacity());
  EXPECT_EQ(run.stats.drafts.all_accepted(), run.stats.drafts.all_drafted());
  // It reads the prompt in the target's step, and drafts from the next step on.
  for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(run.steps[s].drafted, 0);
  EXPECT_GT(run.steps[4].drafted, 0);
  // The last token needs no row, nor does the draft before it.
  EXPECT_LE(draft.inner.rows(), 50 + 30 - 1);
  EXPECT_GE(draft.inner.rows(), 50 + 30 - 3);
}

// A prompt is in the target's prefix cache but not in the draft model's, which reads it in chunks
// before it drafts. Later both have it.
TEST(ModelDrafter, ReadsInChunksWhatTheTargetHadCached) {
  FakeSetup setup({.page_size = 4});
  Draft draft({.page_size = 4}, {.prefill_rows = 8});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 3;
  std::vector<Request> requests{request(81, 20)};
  {
    // An engine owns all free pages. This one's prompts are in no prefix cache of the drafter.
    Engine engine = setup.engine(options);
    // An answer of one token wants no drafts, so the draft model reads nothing.
    requests[0].sampling.max_tokens = 1;
    serve(engine, requests);
    EXPECT_EQ(draft.inner.rows(), 0);
    requests[0].sampling.max_tokens = 20;
    const Served first = serve(engine, requests);
    EXPECT_EQ(first.stats.cached_tokens, 80);
    // 81 + 1 tokens are eleven chunks of 8, while the answer adds tokens.
    std::int64_t silent = 0;
    while (first.steps[static_cast<std::size_t>(silent)].drafted == 0) ++silent;
    EXPECT_GE(silent, 10);
    EXPECT_LE(silent, 13);
    EXPECT_EQ(first.stats.drafts.all_accepted(), first.stats.drafts.all_drafted());
    const std::int64_t rows = draft.inner.rows();
    const Served second = serve(engine, requests);
    EXPECT_GT(second.steps[1].drafted, 0);
    EXPECT_LT(draft.inner.rows() - rows, 30);
  }
  expect_nothing_held(draft);
}

// Four prompts in turn that share 64 tokens: the second one leaves the window where it parts from
// the first, and from the third one on the draft model reads the rest alone.
TEST(ModelDrafter, C1KeepsAWindowWherePromptsPart) {
  for (const std::int32_t window : {0, 8}) {
    FakeSetup setup({.page_size = 4});
    Draft draft({.page_size = 4, .window = window}, {.prefill_rows = 96});
    EngineOptions options;
    options.drafter = &draft;
    options.draft_tokens = 3;
    Engine engine = setup.engine(options);
    std::vector<std::int64_t> rows;
    for (std::int32_t turn = 0; turn < 4; ++turn) {
      std::vector<Request> requests{request(64 + 24, 8)};
      for (std::size_t i = 64; i < requests[0].prompt.size(); ++i) {
        requests[0].prompt[i] = (requests[0].prompt[i] + 1 + turn) % 7;
      }
      const std::int64_t before = draft.inner.rows();
      const Served run = serve(engine, requests);
      EXPECT_EQ(run.answers.begin()->second, expected_answer(requests[0], engine.capacity()));
      rows.push_back(draft.inner.rows() - before);
    }
    SCOPED_TRACE(window);
    EXPECT_GE(rows[0], 88);
    EXPECT_GE(rows[1], window > 0 ? 88 : 24);
    EXPECT_LT(rows[2], 24 + 20);
    EXPECT_LT(rows[3], 24 + 20);
  }
}

// Many prompts at once that the target has cached and the draft model has not. It reads as many
// rows as one step of prefill allows, and the rest when few requests are left.
TEST(ModelDrafter, ReadsNoPromptLateBesideMany) {
  FakeSetup setup({.page_size = 4, .pages = 500});
  Draft draft({.page_size = 4, .pages = 500}, {.prefill_rows = 48});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 3;
  Engine engine = setup.engine(options);
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 16; ++i) requests.push_back(request(41, 1, i));
  serve(engine, requests);
  EXPECT_EQ(draft.inner.rows(), 0);
  for (std::size_t i = 0; i < 16; ++i) {
    requests[i].sampling.max_tokens = 20 + 3 * static_cast<std::int32_t>(i);
  }
  std::int64_t beside_many = 0;
  const Served run = serve(engine, requests, 0, [&] {
    if (engine.stats().running >= 8) beside_many = draft.inner.rows();
  });
  EXPECT_GE(run.stats.cached_tokens, 16 * 40);
  EXPECT_LE(beside_many, 2 * 48);
  EXPECT_GT(draft.inner.rows(), 7 * 41);
  EXPECT_GT(run.stats.drafts.all_accepted(), 20);
  EXPECT_EQ(run.stats.drafts.all_accepted(), run.stats.drafts.all_drafted());
  expect_nothing_held(draft);
}

// The target has cached a prompt of 41 tokens; a row of the draft model costs as much as the
// target's. The draft model reads 16 tokens and the last one in the target's step, and later finds
// the full pages of them, 12 tokens. It reads the others from step n of the answer on, if n >= 0.45
// * (29 + n), and needs four steps.
TEST(ModelDrafter, ReadsNoPromptLateForAFewTokens) {
  FakeSetup setup({.page_size = 4});
  Draft draft({.page_size = 4}, {.prefill_rows = 16, .cost = 1});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 4;
  Engine engine = setup.engine(options);
  serve(engine, {request(41, 1, 1), request(41, 1, 2)});
  EXPECT_EQ(draft.inner.rows(), 0);
  const Served few = serve(engine, {request(41, 20, 1)});
  EXPECT_EQ(few.stats.cached_tokens, 40);
  EXPECT_EQ(few.stats.drafts.all_drafted(), 0);
  EXPECT_EQ(draft.inner.rows(), 16);
  const Served more = serve(engine, {request(41, 50, 2)});
  std::size_t silent = 0;
  while (more.steps[silent].drafted == 0) ++silent;
  EXPECT_GE(silent, 24u + 4);
  EXPECT_LE(silent, 26u + 4);
  EXPECT_EQ(more.stats.drafts.all_accepted(), more.stats.drafts.all_drafted());
  expect_nothing_held(draft);
}

// While so many requests run that a draft with its check costs more than a token, prompts are not
// read.
TEST(ModelDrafter, ReadsNoPromptBesideManyForDraftsThatCannotPay) {
  for (const double cost : {0.1, 0.5}) {
    FakeSetup setup({.page_size = 4, .pages = 500});
    Draft draft({.page_size = 4, .pages = 500}, {.cost = cost});
    EngineOptions options;
    options.drafter = &draft;
    Engine engine = setup.engine(options);
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 12; ++i) requests.push_back(request(20, 10, i));
    std::int64_t beside_many = 0;
    serve(engine, requests, 0, [&] {
      if (engine.stats().running >= 8) beside_many = draft.inner.rows();
    });
    if (cost < 0.45) {
      EXPECT_GE(beside_many, 12 * 20);
    } else {
      EXPECT_EQ(beside_many, 0);
    }
  }
}

// Drafts that are never right change no token, so every step must do what it does without drafts,
// however few pages the draft model has, and never wait for its pages.
TEST(ModelDrafter, TakesNothingFromAnybody) {
  for (const std::int64_t pages : {12, 24}) {
    for (const std::int64_t own : {6, 12, 40}) {
      SCOPED_TRACE(testing::Message() << pages << " pages, " << own << " of the draft model");
      std::vector<Request> requests;
      for (std::int32_t i = 0; i < 24; ++i) {
        requests.push_back(request(5 + 3 * (i % 5), 8 + 5 * (i % 4), i % 6));
      }
      const auto serve_with = [&](Drafter* drafter) {
        FakeSetup setup({.pages = pages});
        EngineOptions options;
        options.chunked_prefill_size = 7;
        options.drafter = drafter;
        options.draft_tokens = 6;
        Engine engine = setup.engine(options);
        const Served run = serve(engine, requests, 2, [&] { setup.cache->poison_free(); });
        expect_answers(run, requests, engine.capacity());
        return run;
      };
      Draft draft({.pages = own}, {.prefill_rows = 7});
      draft.change = [](DraftRequest& r) {
        for (std::int32_t& token : r.drafts) token = (token + 1) % FakeModel::kNanToken;
      };
      const Served plain = serve_with(nullptr), drafts = serve_with(&draft);
      EXPECT_GT(drafts.stats.drafts.all_drafted(), 10);
      EXPECT_EQ(drafts.stats.drafts.all_accepted(), 0);
      std::printf("%ld of %ld without drafts\n", draft.without, draft.calls);
      // Sometimes it has to catch up: the target's prefix cache has prompts that its own has not.
      const double silent = static_cast<double>(draft.without) / static_cast<double>(draft.calls);
      EXPECT_GT(silent, own == 6 ? 0.5 : 0.0);
      EXPECT_LT(silent, own == 40 ? 0.4 : 1.0);
      ASSERT_EQ(drafts.steps.size(), plain.steps.size());
      for (std::size_t s = 0; s < plain.steps.size(); ++s) {
        const StepReport &a = drafts.steps[s], &b = plain.steps[s];
        ASSERT_EQ(std::tuple(a.tokens.size(), a.prefill_rows, a.decode_rows, a.admitted,
                             a.cached_tokens, a.preemptions, a.finished.size()),
                  std::tuple(b.tokens.size(), b.prefill_rows, b.decode_rows, b.admitted,
                             b.cached_tokens, b.preemptions, b.finished.size()))
            << "step " << s;
      }
      expect_nothing_held(draft);
    }
  }
}

// Two requests need 8 and 11 of twelve pages: one has drafts until it ends, then the other.
TEST(ModelDrafter, AFullPoolServesOneAfterTheOther) {
  FakeSetup setup;
  Draft draft({.page_size = 4, .pages = 12});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 2;
  Engine engine = setup.engine(options);
  const std::vector<Request> requests{request(14, 16), request(14, 30, 9)};
  const Served run = serve(engine, requests);
  expect_answers(run, requests, engine.capacity());
  EXPECT_GT(draft.without, 2);
  EXPECT_GT(run.stats.drafts.all_accepted(), 20);
  expect_nothing_held(draft);
}

// Beyond the draft model's own context there are no drafts, and its pages are free for other
// requests.
TEST(ModelDrafter, DraftsUpToItsContext) {
  FakeSetup setup;
  Draft draft({.pages = 16, .context_length = 40});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 4;
  Engine engine = setup.engine(options);
  const std::vector<Request> requests{request(20, 60), request(60, 9)};
  const Served run = serve(engine, requests);
  expect_answers(run, requests, engine.capacity());
  EXPECT_GT(run.stats.drafts.all_accepted(), 10);
  EXPECT_EQ(run.stats.drafts.all_accepted(), run.stats.drafts.all_drafted());
  // The draft after the 40th token is the last.
  EXPECT_LE(run.stats.drafts.all_accepted(), 21);
  expect_nothing_held(draft);
}

// A pass of the draft model fails, before or after it has written keys, or a token's key gives NaN.
// That costs drafts and nothing else.
TEST(ModelDrafter, WhatFailsCostsDraftsAlone) {
  for (const bool late : {false, true}) {
    FakeSetup setup;
    Draft draft({});
    EngineOptions options;
    options.drafter = &draft;
    options.draft_tokens = 3;
    Engine engine = setup.engine(options);
    const std::vector<Request> requests = mixed_requests(12);
    std::int64_t step = 0;
    const Served run = serve(engine, requests, 1, [&] {
      (late ? draft.setup.model->fail_late : draft.setup.model->fail_next) = ++step % 3 == 0;
    });
    expect_answers(run, requests, engine.capacity());
    EXPECT_GT(draft.without, 5);
    EXPECT_GT(run.stats.drafts.all_accepted(), 20);
    EXPECT_EQ(run.stats.drafts.all_accepted(), run.stats.drafts.all_drafted());
    draft.setup.model->fail_late = draft.setup.model->fail_next = false;
    expect_nothing_held(draft);
  }
  FakeSetup setup;
  Draft draft({});
  draft.change = [&](DraftRequest& r) {
    if (r.most > 0) r.drafts.assign(1, FakeModel::kNanToken);
  };
  EngineOptions options;
  options.drafter = &draft;
  Engine engine = setup.engine(options);
  const std::vector<Request> requests = mixed_requests(6);
  expect_answers(serve(engine, requests), requests, engine.capacity());
  expect_nothing_held(draft);
}

// After a failed step of the target the repeated step has the same, right drafts.
TEST(ModelDrafter, AStepThatFailedIsRepeated) {
  FakeSetup setup;
  Draft draft({.page_size = 1, .window = 4, .window_page_size = 1});
  EngineOptions options;
  options.drafter = &draft;
  options.draft_tokens = 3;
  Engine engine = setup.engine(options);
  const std::vector<Request> requests = mixed_requests(6);
  for (const Request& r : requests) ASSERT_TRUE(engine.submit(r));
  std::map<RequestId, Answer> answers;
  for (std::int64_t i = 0; !engine.idle(); ++i) {
    (i % 2 == 0 ? setup.model->fail_next : setup.model->fail_late) = i % 3 != 2;
    const bool fails = i % 3 != 2;
    const auto report = engine.step();
    ASSERT_EQ(report.ok(), !fails);
    if (fails) continue;
    for (const TokenEvent& e : report->tokens) {
      answers[e.request].tokens.push_back(e.sampled.token);
    }
    for (const Finished& f : report->finished) answers[f.request].reason = f.reason;
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers.at(RequestId{i + 1}), expected_answer(requests[i], engine.capacity()));
  }
  EXPECT_GT(engine.stats().drafts.all_accepted(), 20);
  EXPECT_EQ(engine.stats().drafts.all_accepted(), engine.stats().drafts.all_drafted());
  expect_nothing_held(draft);
}

TEST(ModelDrafter, RefusesAModelWithAState) {
  FakeSetup setup({.state = true});
  const auto made = ModelDrafter::create(*setup.model, *setup.cache, {}, setup.ops());
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("--draft: wanted a draft model without a state"));
}

}  // namespace
}  // namespace lathe
