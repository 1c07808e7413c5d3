// The engine with a model on several ranks: answers, drafts, and what goes wrong on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/draft/model_drafter.h"
#include "engine/draft/mtp_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/test/fake_model_test_util.h"
#include "engine/test/real_ranks_test_util.h"

namespace lathe {
namespace {

std::string fixture(const std::string& name) {
  return checkpoint_dir(std::string(LATHE_TEST_DATA) + "/models/" + name);
}
std::string shipped_model(const std::string& name) {
  return std::string(LATHE_TEST_DATA) + "/../../models/" + name;
}

std::vector<Request> ranked_requests(const Model& model) {
  std::vector<Request> out;
  for (std::int32_t i = 0; i < 6; ++i) {
    Request r = greedy(make_prompt(model, 5 + 19 * i, i, 20), 12 + 3 * i);
    if (i % 2 == 1) {
      r.sampling.temperature = 0.8f;
      r.sampling.top_p = 0.9f;
      r.sampling.seed = static_cast<std::uint64_t>(70 + i);
    }
    if (i == 4) r.sampling.repetition_penalty = 1.2f;
    out.push_back(std::move(r));
  }
  return out;
}

// DeepSeek V4's pages are whole compressed entries. Blocks with states of a delta rule have at
// least 64 tokens.
std::int32_t ranked_page_size(const std::string& model) {
  if (model.find("qwen3_5") != std::string::npos || model == "glm5_next") return 64;
  return model.find("v4") != std::string::npos ? 128 : 16;
}

struct RankedCase {
  const char* model;
  std::int32_t ranks;
  bool late = false;
};

class RankedAnswers : public testing::TestWithParam<RankedCase> {};

// A7: chunks, preemption, shared prompts and other requests in the batch change no bit of an answer
// on N ranks. The pool holds fewer tokens than all requests need.
TEST_P(RankedAnswers, AreThoseOfARequestAlone) {
  const auto& [name, ranks, late] = GetParam();
  const RealSetup::Options options{
      .page_size = ranked_page_size(name), .tokens = 288, .late = late};
  std::vector<RealAnswer> want;
  std::vector<Request> requests;
  {
    const RealRanks probe(fixture(name), ranks, options);
    requests = ranked_requests(probe.model());
  }
  for (const Request& r : requests) {
    RealRanks alone(fixture(name), ranks, options);
    Engine engine = alone.engine({.prefix_cache = false});
    want.push_back(serve_real(engine, {r})[0]);
  }
  RealRanks all(fixture(name), ranks, options);
  Engine engine = all.engine({.chunked_prefill_size = 23});
  const std::vector<RealAnswer> got = serve_real(engine, requests, 2);
  all.expect_equal_rows();
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same(got[i], want[i])) << "request " << i;
  }
  // The prompts share 20 tokens.
  if (options.page_size <= 20) {
    EXPECT_GT(engine.stats().cached_tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RankedAnswers,
    testing::Values(RankedCase{"qwen3", 2}, RankedCase{"qwen3_moe", 4, true},
                    RankedCase{"deepseek_v32", 3}, RankedCase{"deepseek_v4", 2},
                    RankedCase{"gpt_oss_bf16", 2, true}, RankedCase{"gemma3_new", 4},
                    RankedCase{"qwen3_5_moe", 2, true}, RankedCase{"hy_v4", 3},
                    RankedCase{"glm5_next", 3}),
    [](const auto& c) { return std::string(c.param.model) + (c.param.late ? "_late" : ""); });

// Greedy tokens are one rank's wherever its best two differ by more than the sums' rounding.
TEST(RankedEngine, AnswersAreThoseOfOneRank) {
  for (const auto& [name, ranks] : {std::pair{"tiny-gqa", 2}, {"tiny-v32", 4}, {"tiny-v4", 2}}) {
    const RealSetup::Options options{.page_size = ranked_page_size(name), .tokens = 512};
    const auto whole = std::move(*load_model(shipped_model(name), {}));
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 3; ++i) {
      requests.push_back(greedy(make_prompt(*whole, 20 + 30 * i, i), 16));
    }
    RealSetup one(*whole, options);
    Engine alone = one.engine({});
    const auto want = serve_real(alone, requests);
    RealRanks setup(shipped_model(name), ranks, options);
    Engine engine = setup.engine();
    const auto got = serve_real(engine, requests);
    for (std::size_t i = 0; i < want.size(); ++i) {
      for (std::size_t k = 0; k < want[i].tokens.size(); ++k) {
        const SampledToken &w = want[i].tokens[k], &g = got[i].tokens[k];
        const double gap = w.top[0].logprob - w.top[1].logprob;
        if (g.token != w.token) {
          EXPECT_LT(gap, 0.05) << name << ", request " << i << ", token " << k;
          break;  // the contexts differ from here on
        }
        EXPECT_NEAR(*g.logprob, *w.logprob, 0.05) << name << ", request " << i << ", token " << k;
      }
    }
  }
}

// Drafts change no bit on ranks either.
TEST(RankedEngine, DraftsChangeNoBit) {
  for (const char* name : {"tiny-v32", "tiny-v4"}) {
    const RealSetup::Options options{
        .page_size = ranked_page_size(name), .tokens = 1024, .draft_tokens = 3};
    std::vector<Request> requests;
    std::vector<RealAnswer> want;
    {
      RealRanks plain(shipped_model(name), 2, options);
      for (std::int32_t i = 0; i < 3; ++i) {
        requests.push_back(greedy(make_prompt(plain.model(), 30 + 50 * i, i), 14));
      }
      requests[1].sampling.temperature = 0.7f;
      requests[1].sampling.seed = 9;
      Engine engine = plain.engine();
      want = serve_real(engine, requests);
    }
    for (const bool mtp : {false, true}) {
      RealRanks setup(shipped_model(name), 2, options, mtp);
      std::unique_ptr<Drafter> drafter = std::make_unique<NgramDrafter>();
      if (mtp) {
        auto made = MtpDrafter::create(setup.model(), setup.cache(), setup.ops(), &setup.others());
        ASSERT_TRUE(made);
        drafter = std::make_unique<MtpDrafter>(std::move(*made));
      }
      Engine engine = setup.engine({.drafter = drafter.get(), .draft_tokens = 3});
      const auto got = serve_real(engine, requests);
      setup.expect_equal_rows();
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got[i], want[i])) << name << (mtp ? ", mtp" : ", ngram") << ", " << i;
      }
      if (mtp) {
        EXPECT_GT(engine.stats().drafts.all_accepted(), 0);
      }
    }
  }
}

// A draft model on the same ranks: here the model itself, so all its drafts are right.
TEST(RankedEngine, ADraftModelIsOnTheSameRanks) {
  const RealSetup::Options options{.tokens = 1024, .draft_tokens = 3};
  RealRanks setup(shipped_model("tiny-gqa"), 2, options);
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 2; ++i) {
    requests.push_back(greedy(make_prompt(setup.model(), 30 + 50 * i, i), 14));
  }
  std::vector<RealAnswer> want;
  {
    Engine engine = setup.engine();
    want = serve_real(engine, requests);
  }
  // The draft model's pools are another setup's, and its ranks use the first one's threads.
  RealRanks draft(shipped_model("tiny-gqa"), 2, options);
  OtherRanks ranks;
  ranks.group = &setup.group();
  ranks.models = draft.others().models;
  ranks.models[0].ops.communicator = &setup.group().communicator(1);
  OpsContext ops = draft.ops();
  ops.communicator = &setup.group().communicator(0);
  auto made = ModelDrafter::create(draft.model(), draft.cache(), {}, ops, &ranks);
  ASSERT_TRUE(made);
  RealRanks fresh(shipped_model("tiny-gqa"), 2, options);
  OtherRanks target = fresh.others();
  target.group = &setup.group();
  target.models[0].ops.communicator = &setup.group().communicator(1);
  OpsContext target_ops = fresh.ops();
  target_ops.communicator = &setup.group().communicator(0);
  auto engine =
      Engine::create(fresh.model(), fresh.cache(),
                     {.drafter = &*made, .draft_tokens = 3, .ranks = &target}, target_ops);
  ASSERT_TRUE(engine);
  const auto got = serve_real(*engine, requests);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same(got[i], want[i])) << i;
  const DraftStats drafts = engine->stats().drafts;
  EXPECT_GT(drafts.all_accepted(), 10);
  EXPECT_EQ(drafts.all_accepted(), drafts.all_drafted());
}

// A6: with equal logits, tokens and log-probabilities have one rank's bits, whichever rank a row
// belongs to: batches smaller and larger than the ranks, masks, penalties, prompt
// log-probabilities.
TEST(RankedEngine, SamplingHasOneRanksBits) {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 7; ++i) {
    Request r;
    for (std::int32_t t = 0; t < 4 + i; ++t) r.prompt.push_back((3 * t + 5 * i) % 40);
    SamplingParams& p = r.sampling;
    p.max_tokens = 3 + 2 * i;
    p.ignore_eos = true;
    p.logit_bias = {{FakeModel::kNanToken, -1000}};
    p.logprobs = 5;
    p.temperature = i % 3 == 0 ? 0 : 0.9f;
    p.seed = static_cast<std::uint64_t>(i);
    if (i == 2) p.top_k = 4;
    if (i == 3) p.min_p = 0.05f;
    if (i == 4) p.frequency_penalty = 0.6f;
    if (i == 5) p.min_tokens = 4, p.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8};
    if (i % 2 == 0) r.prompt_logprobs_from = 0;
    requests.push_back(std::move(r));
  }
  std::vector<RealAnswer> want;
  for (const std::int32_t ranks : {1, 2, 4, 8}) {
    for (const bool late : {false, true}) {
      FakeSetup setup({.late = late, .overlaps = late, .ranks = ranks});
      Engine engine = setup.engine({.chunked_prefill_size = 6});
      const auto got = serve_real(engine, requests, 1);
      if (want.empty()) want = got;
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got[i], want[i])) << ranks << " ranks, request " << i;
      }
    }
  }
}

// E9: a rank that cannot prepare a step fails it on all ranks, and the step can be repeated. A step
// has one agreement: that every rank has prepared it.
TEST(RankedEngine, AStepThatOneRankCannotPrepareCanBeRepeated) {
  for (const auto& [late, call] : {std::pair{false, 4}, {false, 5}, {true, 4}, {true, 5}}) {
    FakeSetup setup({.late = late, .ranks = 4, .fail_agree = call});
    Engine engine = setup.engine();
    Request r;
    r.prompt = {1, 2, 3};
    r.sampling.temperature = 0;
    r.sampling.max_tokens = 6;
    r.sampling.ignore_eos = true;
    r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
    ASSERT_TRUE(engine.submit(r));
    std::vector<std::int32_t> tokens;
    int failed = 0;
    for (int step = 0; step < 20 && !engine.idle(); ++step) {
      const auto report = engine.step();
      if (!report) {
        ++failed;
        EXPECT_EQ(report.error().message(),
                  "rank 3: memory: wanted enough, got less; this is a test's choice");
        EXPECT_FALSE(engine.in_flight());
        continue;
      }
      for (const TokenEvent& e : report->tokens) tokens.push_back(e.sampled.token);
    }
    EXPECT_EQ(failed, 1);
    EXPECT_EQ(tokens, expected_answer(r, engine.capacity()).tokens);
  }
}

// A launch that fails on one rank after all have agreed cannot be undone: the group is aborted at
// once, and every later step says why.
TEST(RankedEngine, ALaunchThatFailsOnOneRankEndsAllSteps) {
  FakeSetup setup({.ranks = 4});
  Engine engine = setup.engine();
  Request r;
  r.prompt = {1, 2, 3};
  r.sampling.max_tokens = 6;
  r.sampling.ignore_eos = true;
  r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
  ASSERT_TRUE(engine.submit(r));
  ASSERT_TRUE(engine.step());
  setup.others[1]->model->fail_next = true;
  for (int step = 0; step < 3; ++step) {
    const auto report = engine.step();
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message(), testing::StartsWith("rank 2: "));
    EXPECT_FALSE(engine.in_flight());
  }
}

// A rank's thread ends in an exchange: the others stop waiting, and every later step says why.
TEST(RankedEngine, ARankThatEndsIsNamed) {
  RealRanks setup(fixture("qwen3"), 4, {}, false,
                  [](std::int32_t r, Faults& f) { f.end_thread = r == 2 ? 9 : -1; });
  Engine engine = setup.engine();
  ASSERT_TRUE(engine.submit(greedy(make_prompt(setup.model(), 12), 8)));
  int failed = 0;
  for (int step = 0; step < 4; ++step) {
    const auto report = engine.step();
    if (report) continue;
    ++failed;
    EXPECT_EQ(report.error().message(),
              "rank 2: wanted a thread that works, got a test ends this rank's thread");
    EXPECT_FALSE(engine.in_flight());
  }
  EXPECT_GE(failed, 3);
}

}  // namespace
}  // namespace lathe
