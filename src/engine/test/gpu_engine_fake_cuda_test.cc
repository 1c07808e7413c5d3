// The engine on the emulated CUDA backend: recorded steps against unrecorded ones, and what a step
// costs the host.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/test_scale.h"
#include "engine/draft/test/mtp_test_util.h"
#include "engine/test/gpu_engine_test_util.h"
#include "io/files/read_file.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "model/test/dummy_glm53_test_util.h"
#include "model/test/dummy_llama4_test_util.h"
#include "model/test/generated_checkpoint.h"

namespace lathe {
namespace {

const std::string kModel = std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32";
const std::string kV4Model = std::string(LATHE_TEST_DATA) + "/../../models/tiny-v4";
constexpr GpuSetup::Sizes kSizes = {.context = 128, .plain_products = true};
constexpr GpuSetup::Sizes kV4Sizes = {.context = 256, .cache_tokens = 1024, .plain_products = true};
const std::vector<Prompt> kPrompts = {{7, 6}, {3, 6}, {12, 6}};

void expect_recorded_as_others(const std::string& model, const GpuSetup::Sizes& sizes,
                               const std::vector<Prompt>& prompts) {
  const std::int64_t before = cuda::fake::counts().graph_launches;
  const Answers recorded = answers_of(model, sizes, {}, prompts);
  EXPECT_GT(cuda::fake::counts().graph_launches, before);
  EngineOptions eager;
  eager.debug_nan = true;  // its steps are neither padded nor recorded
  const std::int64_t between = cuda::fake::counts().graph_launches;
  const Answers plain = answers_of(model, sizes, eager, prompts);
  EXPECT_EQ(cuda::fake::counts().graph_launches, between);
  ASSERT_EQ(recorded.tokens.size(), prompts.size());
  EXPECT_EQ(recorded.tokens, plain.tokens);
  for (const auto& [id, rows] : plain.logits) {
    const Logits& others = recorded.logits.at(id);
    ASSERT_EQ(rows.size(), others.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LT(relative_error(others[i], rows[i]), 5e-3) << id << ", " << i;
    }
  }
}

TEST(GpuEngine, RecordedStepsGiveWhatOthersGive) {
  expect_recorded_as_others(kModel, kSizes, kPrompts);
}

// The fake runtime runs nothing before a wait, so a step that starts before the results of the step
// before reads tokens that the host does not know.
TEST(GpuEngine, StepsBehindOthersChangeNoToken) {
  const std::vector<Prompt> prompts = {{7, 9}, {3, 6, 0.9f}, {12, 12}, {2, 4, 1.2f}};
  EngineOptions apart;
  apart.overlap = false;
  const Answers one = answers_of(kModel, kSizes, apart, prompts, false);
  const Answers two = answers_of(kModel, kSizes, {}, prompts, false);
  EXPECT_EQ(one.steps_behind, 0);
  EXPECT_GT(two.steps_behind, 6);
  EXPECT_EQ(two.stats.steps, one.stats.steps);
  EXPECT_EQ(two.tokens, one.tokens);
  for (const auto& [id, logprobs] : one.logprobs) {
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
      EXPECT_NEAR(two.logprobs.at(id)[i], logprobs[i], 5e-3) << id << ", " << i;
    }
  }
}

// A stop token is seen one step late; the token that its request got in that step is dropped.
TEST(GpuEngine, AnAnswerEndsAtItsStopTokenWithAStepBehindIt) {
  GpuSetup free(kModel, kSizes, {});
  const auto answer = [](GpuSetup& setup, std::vector<std::int32_t> stops) {
    Request r;
    r.prompt = some_tokens(9, setup.config().vocab);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = 12;
    r.sampling.stop_token_ids = std::move(stops);
    EXPECT_TRUE(setup.engine().submit(r).ok());
    std::vector<std::int32_t> tokens;
    while (!setup.engine().idle()) {
      const auto report = setup.engine().step();
      EXPECT_TRUE(report.ok());
      for (const auto& t : report->tokens) tokens.push_back(t.sampled.token);
    }
    return tokens;
  };
  const std::vector<std::int32_t> whole = answer(free, {});
  ASSERT_EQ(whole.size(), 12u);
  const auto first = std::find(whole.begin(), whole.end(), whole[7]);
  const std::vector<std::int32_t> expected(whole.begin(), first + 1);
  GpuSetup stopped(kModel, kSizes, {});
  EXPECT_EQ(answer(stopped, {whole[7]}), expected);
  EXPECT_EQ(stopped.engine().stats().held_pages, 0);
}

// Some steps complete entries of 4 and of 128 tokens, others do not.
TEST(GpuEngine, RecordedStepsOfDeepseekV4GiveWhatOthersGive) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_wide"));
  expect_recorded_as_others(checkpoint.dir(), kV4Sizes, {{7, 3}, {126, 4}});
}

// Some steps complete an index key of eight tokens, others do not; rows select two keys.
TEST(GpuEngine, RecordedStepsOfSharedIndexKeysGiveWhatOthersGive) {
  const DummyGlm53 model;
  GpuSetup::Sizes sizes = kSizes;
  sizes.dummy = true;
  expect_recorded_as_others(model.dir(), sizes, {{7, 12}, {30, 12}});
}

// Drafts change no token, greedy or sampled, in recorded steps and others. The last bits of logits
// depend on a row's place in its step, because attention distributes the keys of all rows to thread
// blocks.
void expect_drafts_change_no_token(const std::string& model, GpuSetup::Sizes sizes,
                                   const std::vector<Prompt>& prompts = {{4, 8}, {2, 7, 0.9f}}) {
  SCOPED_TRACE(model);
  const Answers plain = answers_of(model, sizes, {}, prompts);
  const std::int32_t vocab = load_model_config(model)->vocab;
  struct Case {
    std::int32_t draft_tokens;
    Guess guess;
    bool eager;
  };
  for (const auto& [draft_tokens, guess, eager] :
       {Case{1, Guess::right, false}, Case{1, Guess::wrong, false}, Case{3, Guess::right, false},
        Case{3, Guess::mixed, false}, Case{3, Guess::mixed, true}}) {
    SCOPED_TRACE(std::to_string(draft_tokens) + " drafts, kind " +
                 std::to_string(static_cast<int>(guess)) + (eager ? ", eager" : ""));
    sizes.draft_tokens = draft_tokens;
    ScriptedDrafter drafter = drafter_of(plain, prompts, vocab, guess);
    EngineOptions options;
    options.drafter = &drafter;
    options.draft_tokens = draft_tokens;
    options.debug_nan = eager;
    const std::int64_t before = cuda::fake::counts().graph_launches;
    const Answers got = answers_of(model, sizes, options, prompts);
    const std::int64_t replayed = cuda::fake::counts().graph_launches - before;
    // With three drafts steps have many sizes, few of them repeatedly.
    if (eager) {
      EXPECT_EQ(replayed, 0);
    } else if (draft_tokens == 1) {
      EXPECT_GT(replayed, 0);
    }
    EXPECT_EQ(got.tokens, plain.tokens);
    for (const auto& [id, rows] : plain.logits) {
      const Logits& others = got.logits.at(id);
      ASSERT_EQ(rows.size(), others.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        EXPECT_LT(relative_error(others[i], rows[i]), 5e-3) << id << ", " << i;
      }
    }
    const DraftStats& drafts = got.stats.drafts;
    EXPECT_GT(drafts.all_drafted(), 3);
    if (guess == Guess::right) {
      EXPECT_EQ(drafts.all_accepted(), drafts.all_drafted());
      EXPECT_LT(got.stats.steps, plain.stats.steps - 2);
    } else {
      EXPECT_LT(drafts.all_accepted(), drafts.all_drafted());
      EXPECT_EQ(drafts.all_accepted() > 0, guess == Guess::mixed);
    }
  }
}

TEST(GpuEngine, DraftsChangeNoTokenOfSelectedKeys) {
  expect_drafts_change_no_token(kModel, kSizes);
}

TEST(GpuEngine, DraftsChangeNoTokenOfGroupedQueries) {
  expect_drafts_change_no_token(std::string(LATHE_TEST_DATA) + "/../../models/tiny-gqa", kSizes);
}

// Answers begin at every residue of a group of 4, so that rejected drafts have completed entries,
// too.
TEST(GpuEngine, DraftsChangeNoTokenOfDeepseekV4) {
  expect_drafts_change_no_token(kV4Model, kV4Sizes);
}

// Rejected drafts have completed index keys, too.
TEST(GpuEngine, DraftsChangeNoTokenOfSharedIndexKeys) {
  const DummyGlm53 model;
  GpuSetup::Sizes sizes = kSizes;
  sizes.dummy = true;
  expect_drafts_change_no_token(model.dir(), sizes);
}

// Answers enter another chunk of 64 tokens, some of them between a token and its drafts.
TEST(GpuEngine, DraftsChangeNoTokenOfChunks) {
  const DummyLlama4 model;
  GpuSetup::Sizes sizes = kSizes;
  sizes.dummy = true;
  const std::uint32_t seed = test_seed(9);
  std::mt19937 rng(seed);
  const int before = 2 + static_cast<int>(rng() % 4);
  SCOPED_TRACE("seed " + std::to_string(seed));
  expect_drafts_change_no_token(model.dir(), sizes,
                                {{DummyLlama4::kChunk - before, 9}, {3, 6, 0.9f}});
}

// The draft layers' logits, up to rounding, against the references of
// engine/draft/test/mtp_test.cc.
TEST(GpuEngine, ADraftLayerGivesWhatAPlainReferenceGives) {
  for (const bool v4 : {false, true}) {
    GpuSetup::Sizes sizes = v4 ? kV4Sizes : kSizes;
    sizes.draft_tokens = 3;
    sizes.mtp = true;
    GpuSetup setup(v4 ? kV4Model : kModel, sizes, {});
    expect_golden_drafts(Golden(LATHE_TEST_DATA, v4 ? "tiny_v4" : "tiny_v32"), "short", 30,
                         kGpuBound, setup.model(), setup.cache(), setup.ops());
  }
}

// A layer's drafts change no token, its passes are recorded, and many of its drafts are right.
void expect_layers_drafts_change_no_token(const std::string& model, GpuSetup::Sizes sizes,
                                          const Golden& golden) {
  const std::vector<Prompt> prompts = {{.answer = 10, .text = golden.ids("short.prompt")},
                                       {.tokens = 3, .answer = 6, .temperature = 0.9f}};
  const Answers plain = answers_of(model, sizes, {}, prompts);
  sizes.mtp = true;
  for (const std::int32_t d : {1, 3}) {
    SCOPED_TRACE(d);
    sizes.draft_tokens = d;
    const std::int64_t before = cuda::fake::counts().graph_launches;
    const Answers got = answers_of(model, sizes, {}, prompts);
    EXPECT_GT(cuda::fake::counts().graph_launches, before + 1);
    EXPECT_EQ(got.tokens, plain.tokens);
    const DraftStats& drafts = got.stats.drafts;
    std::printf("%lld of %lld drafts accepted\n", static_cast<long long>(drafts.all_accepted()),
                static_cast<long long>(drafts.all_drafted()));
    EXPECT_GT(drafts.all_accepted(), 3);
    EXPECT_LT(got.stats.steps, plain.stats.steps);
  }
}

TEST(GpuEngine, DraftsOfADraftLayerChangeNoToken) {
  expect_layers_drafts_change_no_token(kModel, kSizes, Golden());
}

TEST(GpuEngine, DraftsOfTheDraftLayerOfDeepseekV4ChangeNoToken) {
  expect_layers_drafts_change_no_token(kV4Model, kV4Sizes, Golden(LATHE_TEST_DATA, "tiny_v4"));
}

// With and without a second step in flight.
TEST(GpuEngine, AStepInFlightNeitherAllocatesNorWaits) {
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(overlap);
    GpuSetup setup(kModel, kSizes, {.overlap = overlap});
    Engine& engine = setup.engine();
    Request r;
    r.prompt = some_tokens(5, setup.config().vocab);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = 8;
    ASSERT_TRUE(engine.submit(std::move(r)).ok());
    for (int step = 0; step < 4; ++step) ASSERT_TRUE(engine.step().ok());
    ASSERT_EQ(engine.in_flight(), overlap);
    const cuda::fake::Counts before = cuda::fake::counts();
    if (overlap) {
      engine.launch_ahead();
    } else {
      ASSERT_TRUE(engine.launch().ok());
    }
    ASSERT_EQ(engine.in_flight_ahead(), overlap);
    const cuda::fake::Counts after = cuda::fake::counts();
    EXPECT_EQ(after.waits, before.waits);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.pageable_copies, before.pageable_copies);
    EXPECT_EQ(after.copies_in, before.copies_in + 1);  // lists of the step and of sampling
    EXPECT_EQ(after.copies_out, before.copies_out);    // kernels write tokens to host memory
    EXPECT_EQ(after.graph_launches, before.graph_launches + 1);
    ASSERT_TRUE(engine.collect().ok());
    EXPECT_EQ(cuda::fake::counts().waits, before.waits + 1);
  }
}

// Models with random weights, so few drafts are right: dense latent attention, and layers that
// share a choice of keys before a draft layer, which chooses its own keys once for all its uses.
TEST(GpuEngine, DraftLayersOfOtherFamiliesChangeNoToken) {
  auto config = nlohmann::json::parse(*read_file(kModel + "/config.json"));
  config["num_nextn_predict_layers"] = 1;
  config["num_hidden_layers"] = 2;
  auto glm = config;
  glm["model_type"] = "glm_moe_dsa";
  glm["architectures"] = {"GlmMoeDsaForCausalLM"};
  glm["mlp_layer_types"] = {"dense", "sparse"};
  glm["indexer_types"] = {"full", "shared"};
  glm["index_share_for_mtp_iteration"] = true;
  glm["index_topk"] = 8;  // answers grow beyond it
  config["model_type"] = "deepseek_v3";
  config["architectures"] = {"DeepseekV3ForCausalLM"};
  for (const char* key : {"index_n_heads", "index_head_dim", "index_topk"}) config.erase(key);
  const std::vector<Prompt> prompts = {{5, 8}, {3, 6, 0.9f}};
  for (const auto& c : {config, glm}) {
    SCOPED_TRACE(c["model_type"].get<std::string>());
    const auto dir = std::filesystem::path(::testing::TempDir()) /
                     ("lathe_draft_family_" + std::to_string(getpid()));
    std::filesystem::create_directories(dir);
    std::ofstream(dir / "config.json") << c.dump();
    GpuSetup::Sizes sizes = kSizes;
    sizes.dummy = true;
    const Answers plain = answers_of(dir, sizes, {}, prompts);
    sizes.mtp = true;
    sizes.draft_tokens = 2;
    const Answers got = answers_of(dir, sizes, {}, prompts);
    std::filesystem::remove_all(dir);
    EXPECT_EQ(got.tokens, plain.tokens);
    EXPECT_GT(got.stats.drafts.all_drafted(), 5);
  }
}

// Once passes are recorded, a step with a draft has one launch and one wait for the model and for
// each use of the layer, and the host reads only tokens.
void expect_waits_for_drafts_alone(const std::string& model, GpuSetup::Sizes sizes,
                                   const Golden& golden) {
  SCOPED_TRACE(model);
  sizes.draft_tokens = 1;
  sizes.mtp = true;
  GpuSetup setup(model, sizes, {});
  Request r;
  r.prompt = golden.ids("short.prompt");
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  r.sampling.max_tokens = 12;
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(setup.engine().step().ok());
  const cuda::fake::Counts before = cuda::fake::counts();
  const auto report = setup.engine().step();
  const cuda::fake::Counts after = cuda::fake::counts();
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->drafted, 1);
  EXPECT_EQ(after.waits, before.waits + 2);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 2);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  EXPECT_EQ(after.copies_out, before.copies_out);  // kernels write the tokens to host memory
}

TEST(GpuEngine, ADraftLayerWaitsForItsDraftsAlone) {
  expect_waits_for_drafts_alone(kModel, kSizes, Golden());
  expect_waits_for_drafts_alone(kV4Model, kV4Sizes, Golden(LATHE_TEST_DATA, "tiny_v4"));
}

// The largest steps that the plan allows: a whole chunk, then decode rows of all requests with
// drafts.
void expect_planned_allocations(const std::string& model, std::int32_t draft_tokens,
                                bool mtp = false) {
  SCOPED_TRACE(std::to_string(draft_tokens) + (mtp ? " of the draft layer" : ""));
  const std::int64_t before = cuda::fake::device_bytes();
  constexpr std::int64_t kContext = 64;
  ScriptedDrafter drafter([](const DraftRequest&, std::int64_t) { return 1; });
  EngineOptions options;
  if (draft_tokens > 0) options.drafter = &drafter, options.draft_tokens = draft_tokens;
  GpuSetup setup(
      model,
      {.context = kContext, .plain_products = true, .draft_tokens = draft_tokens, .mtp = mtp},
      options);
  const std::int64_t at_start = cuda::fake::device_bytes() - before;
  const std::int32_t answer = draft_tokens > 0 ? 2 + draft_tokens : 3;
  for (std::int64_t i = 0; i < setup.plan().max_requests(); ++i) {
    Request r;
    r.prompt = some_tokens(i == 0 ? kContext - answer : 2, setup.config().vocab);
    r.sampling.temperature = 0.7f;
    r.sampling.logprobs = 5;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = answer;
    ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  }
  while (!setup.engine().idle()) ASSERT_TRUE(setup.engine().step().ok());
  EXPECT_EQ(setup.engine().stats().drafts.all_drafted() > 0, draft_tokens > 0);
  EXPECT_EQ(setup.tensors().growths(), 1);
  const std::int64_t allocated = cuda::fake::device_bytes() - before;
  std::printf("%lld bytes at start, %lld at the end, %lld planned\n",
              static_cast<long long>(at_start), static_cast<long long>(allocated),
              static_cast<long long>(setup.planned_bytes()));
  EXPECT_LE(allocated, setup.planned_bytes());
  // The plan includes the draft layer, but drafts are scripted, so the memory of its passes is
  // unused.
  const double least = mtp ? 0.93 : 0.95;
  EXPECT_GE(static_cast<double>(allocated), least * static_cast<double>(setup.planned_bytes()));
  // Page tables and logits, which the first step allocates, and schedules.
  const auto late = [&](BudgetKind kind) { return setup.plan().budget(kind)->bytes; };
  EXPECT_LE(allocated - at_start, late(BudgetKind::logits) + late(BudgetKind::rope_tables) +
                                      late(BudgetKind::schedules) / 2);
}

TEST(GpuEngine, AllocatesWhatThePlanNames) {
  expect_planned_allocations(kModel, 0);
  expect_planned_allocations(kModel, 3);
  expect_planned_allocations(kModel, 3, true);
}

TEST(GpuEngine, AllocatesWhatThePlanOfDeepseekV4Names) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_wide"));
  expect_planned_allocations(checkpoint.dir(), 0);
  expect_planned_allocations(kV4Model, 3, true);
}

TEST(GpuEngine, AnErrorOfTheDeviceEndsTheStepAndNamesIt) {
  GpuSetup setup(kModel, kSizes, {});
  Request r;
  r.prompt = some_tokens(5, setup.config().vocab);
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  ASSERT_TRUE(setup.engine().launch().ok());
  cuda::fake::fail_next_wait(cudaErrorIllegalAddress);
  const auto report = setup.engine().collect();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::device);
}

}  // namespace
}  // namespace lathe
