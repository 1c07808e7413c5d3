// The engine on a GPU with the shipped checkpoints; their folder is the program's argument.
// LATHE_SOAK_STEPS is the number of steps of the soak test: fewer under compute-sanitizer.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <random>

#include "engine/draft/ngram_drafter.h"
#include "engine/draft/test/drafted_test_util.h"
#include "engine/draft/test/mtp_test_util.h"
#include "engine/test/gpu_engine_test_util.h"
#include "engine/test/real_model_test_util.h"
#include "kernels/cuda/common/test/gpu_test_util.h"
#include "model/test/generated_checkpoint.h"

namespace lathe {
namespace {

std::string models = std::string(LATHE_TEST_DATA) + "/../../models";

class GpuEngine : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string model() { return models + "/" + GetParam(); }
};

// As many requests as a recorded step has rows, because attention is cut differently for another
// number of rows. Lengths below and above the number of keys that tiny-v32's indexer keeps.
const std::vector<Prompt> kPrompts = {{7, 40}, {300, 40}, {100, 40}, {129, 40}};
constexpr GpuSetup::Sizes kSizes = {.context = 1024, .cache_tokens = 64 * 64};

void expect_same_bits(const Answers& a, const Answers& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logits, b.logits);
}

void expect_the_bits_of_others(const std::string& model) {
  EngineOptions eager;
  eager.debug_nan = true;  // its steps are neither padded nor recorded
  const Answers recorded = answers_of(model, kSizes, {}, kPrompts);
  ASSERT_EQ(recorded.logits.size(), kPrompts.size());
  for (const auto& [id, rows] : recorded.logits) ASSERT_EQ(rows.size(), 40u);
  expect_same_bits(recorded, answers_of(model, kSizes, eager, kPrompts));
}

TEST_P(GpuEngine, RecordedStepsGiveTheBitsOfOthers) { expect_the_bits_of_others(model()); }

TEST(GpuEngineCompressed, RecordedStepsOfDeepseekV4GiveTheBitsOfOthers) {
  const GeneratedCheckpoint checkpoint(models + "/../tests/data/models/deepseek_v4_wide");
  expect_the_bits_of_others(checkpoint.dir());
}

// Compares tokens, because one more row in a step changes how attention is cut. Compares bits where
// attention is cut by a request's own keys.
TEST_P(GpuEngine, StepsBehindOthersChangeNoToken) {
  const std::vector<Prompt> prompts = {{7, 40}, {300, 23, 0.8f}, {100, 61}, {129, 40, 1.2f}};
  for (const bool invariant : {false, true}) {
    SCOPED_TRACE(invariant ? "batch-invariant" : "");
    GpuSetup::Sizes sizes = kSizes;
    sizes.batch_invariant = invariant;
    EngineOptions apart;
    apart.overlap = false;
    const Answers one = answers_of(model(), sizes, apart, prompts, false);
    const Answers two = answers_of(model(), sizes, {}, prompts, false);
    EXPECT_EQ(one.steps_behind, 0);
    EXPECT_GT(two.steps_behind, 50);
    EXPECT_EQ(two.tokens, one.tokens);
    EXPECT_EQ(two.logprobs, one.logprobs);
  }
}

TEST_P(GpuEngine, TwentyRepeatsGiveTheSameBits) {
  const Answers first = answers_of(model(), kSizes, {}, kPrompts);
  for (int repeat = 1; repeat < 20; ++repeat) {
    SCOPED_TRACE(repeat);
    expect_same_bits(answers_of(model(), kSizes, {}, kPrompts), first);
    if (HasFailure()) break;
  }
}

// Compares tokens, because attention is cut differently in steps that check drafts. Compares bits
// where attention is cut by a request's own keys.
TEST_P(GpuEngine, DraftsChangeNoToken) {
  const std::vector<Prompt> prompts = {{7, 40}, {300, 40, 0.8f}, {100, 40}, {129, 40, 1.2f}};
  const std::int32_t vocab = load_model_config(model())->vocab;
  for (const bool invariant : {false, true}) {
    SCOPED_TRACE(invariant ? "batch-invariant" : "");
    GpuSetup::Sizes sizes = kSizes;
    sizes.batch_invariant = invariant;
    const Answers plain = answers_of(model(), sizes, {}, prompts);
    for (const std::int32_t d : {1, 4}) {
      sizes.draft_tokens = d;
      for (const Guess guess : {Guess::right, Guess::wrong, Guess::mixed}) {
        for (const bool eager : {false, true}) {
          SCOPED_TRACE(std::to_string(d) + " drafts, kind " +
                       std::to_string(static_cast<int>(guess)) + (eager ? ", eager" : ""));
          ScriptedDrafter drafter = drafter_of(plain, prompts, vocab, guess);
          EngineOptions options;
          options.drafter = &drafter;
          options.draft_tokens = d;
          options.debug_nan = eager;
          const Answers got = answers_of(model(), sizes, options, prompts);
          EXPECT_EQ(got.tokens, plain.tokens);
          if (invariant) {
            EXPECT_EQ(got.logits, plain.logits);
          }
          EXPECT_GT(got.stats.drafts.all_drafted(), 10);
        }
      }
    }
  }
}

// For checkpoints with a draft layer.
class GpuMtp : public GpuEngine {
 protected:
  static Golden golden() {
    std::string name = GetParam();
    std::ranges::replace(name, '-', '_');
    return Golden(models + "/../tests/data", name);
  }
};

// Equal up to rounding (engine/draft/test/mtp_test.cc).
TEST_P(GpuMtp, LogitsAreThoseOfAPlainReference) {
  for (const std::string name : {"short", "long"}) {
    for (const std::int64_t chunk : {256, 50}) {
      SCOPED_TRACE(name + ", chunks of " + std::to_string(chunk));
      GpuSetup setup(model(), {.context = 256, .draft_tokens = 3, .mtp = true}, {});
      expect_golden_drafts(golden(), name, chunk, kGpuBound, setup.model(), setup.cache(),
                           setup.ops());
    }
  }
}

TEST(GpuSharedChoice, LogitsAreThoseOfAPlainReference) {
  const SharedChoiceModel shared(models);
  const Golden golden(models + "/../tests/data", "tiny_v32");
  for (const std::int64_t chunk : {256, 50}) {
    GpuSetup setup(shared.dir(), {.context = 256, .draft_tokens = 3, .mtp = true}, {});
    expect_golden_drafts(golden, "long", chunk, kGpuBound, setup.model(), setup.cache(),
                         setup.ops());
  }
}

// The layer's drafts change no token, as in DraftsChangeNoToken, and about as many are right as on
// the CPU.
TEST_P(GpuMtp, DraftsChangeNoToken) {
  const std::vector<Prompt> prompts = {{.answer = 40, .text = golden().ids("short.prompt")},
                                       {.answer = 40, .text = golden().ids("long.prompt")},
                                       {.tokens = 120, .answer = 40},
                                       {.tokens = 300, .answer = 40, .temperature = 0.8f}};
  for (const bool invariant : {false, true}) {
    SCOPED_TRACE(invariant ? "batch-invariant" : "");
    GpuSetup::Sizes sizes = kSizes;
    sizes.batch_invariant = invariant;
    const Answers plain = answers_of(model(), sizes, {}, prompts);
    sizes.mtp = true;
    for (const std::int32_t d : {1, 2, 3}) {
      for (const bool eager : {false, true}) {
        SCOPED_TRACE(std::to_string(d) + " drafts" + (eager ? ", eager" : ""));
        sizes.draft_tokens = d;
        EngineOptions options;
        options.debug_nan = eager;
        const Answers got = answers_of(model(), sizes, options, prompts);
        EXPECT_EQ(got.tokens, plain.tokens);
        if (invariant) {
          EXPECT_EQ(got.logits, plain.logits);
        }
        EXPECT_GT(got.stats.drafts.all_accepted(), 30);
      }
    }
  }
}

// With the draft layer's drafts, or n-grams.
DraftStats run_on_cpu(const std::string& directory, bool of_layer, std::int32_t draft_tokens,
                      const Prompt& prompt) {
  LoadOptions load;
  load.drafts = of_layer;
  const auto model = load_model(directory, load).value();
  RealSetup::Options options{.layout = "mla_bf16", .context = 1024};
  if (model->config().is_compressed()) options.page_size = 128;
  options.draft_tokens = draft_tokens;
  options.threads = 4;
  const std::vector<Request> requests = {greedy(prompt.text, prompt.answer)};
  if (of_layer) {
    return serve_drafted(*model, options, {.draft_tokens = draft_tokens}, requests).stats.drafts;
  }
  NgramDrafter ngram;
  RealSetup setup(*model, options);
  Engine engine = setup.engine({.drafter = &ngram, .draft_tokens = draft_tokens});
  serve_real(engine, requests);
  return engine.stats().drafts;
}

// Requests are served alone.
TEST_P(GpuMtp, AsManyDraftsAreRightAsOnTheCpu) {
  const std::vector<Prompt> prompts = {{.answer = 24, .text = golden().ids("short.prompt")},
                                       {.answer = 24, .text = golden().ids("long.prompt")}};
  const Answers plain = answers_of(model(), kSizes, {}, prompts, false);
  for (const bool of_layer : {true, false}) {
    for (const std::int32_t d : {1, 3}) {
      GpuSetup::Sizes sizes = kSizes;
      sizes.draft_tokens = d;
      sizes.mtp = of_layer;
      double here[2] = {}, there[2] = {};  // checks, and the tokens that they gave
      const auto add = [](double(&to)[2], const DraftStats& stats) {
        to[0] += static_cast<double>(stats.checks);
        to[1] += static_cast<double>(stats.checks + stats.all_accepted());
      };
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        NgramDrafter ngram;
        EngineOptions options;
        if (!of_layer) options.drafter = &ngram, options.draft_tokens = d;
        const Answers got = answers_of(model(), sizes, options, {prompts[i]}, false);
        EXPECT_EQ(got.tokens.at(1), plain.tokens.at(i + 1));
        add(here, got.stats.drafts);
        add(there, run_on_cpu(model(), of_layer, d, prompts[i]));
      }
      ASSERT_GT(there[0], 0);
      ASSERT_GT(here[0], 0);
      std::printf("%d drafts of %s: %.2f tokens in a check, %.2f on the CPU\n", d,
                  of_layer ? "the layer" : "n-grams", here[1] / here[0], there[1] / there[0]);
      EXPECT_NEAR(here[1] / here[0], there[1] / there[0], 0.25);
    }
  }
}

// Prints the median step of one request, once its steps are recorded.
TEST_P(GpuMtp, StepsTakeLittleMore) {
  const std::vector<Prompt> prompts = {{.answer = 400, .text = golden().ids("long.prompt")}};
  for (const std::int32_t d : {0, 1, 2, 3}) {
    GpuSetup::Sizes sizes = kSizes;
    sizes.draft_tokens = d;
    sizes.mtp = d > 0;
    Answers got = answers_of(model(), sizes, {}, prompts, false);
    std::vector<double> ms(got.step_ms.begin() + std::ssize(got.step_ms) / 3, got.step_ms.end());
    std::sort(ms.begin(), ms.end());
    std::printf("%d drafts of the layer: %.3f ms a step, %.2f tokens in a check, %zu steps\n", d,
                ms[ms.size() / 2], got.stats.drafts.acceptance_length(), got.step_ms.size());
  }
}

// A separate draft model for tiny-v32: tiny-gqa, or itself.
class GpuDraftModel : public GpuEngine {
 protected:
  GpuSetup::Sizes sizes(std::int32_t draft_tokens, bool invariant = false) const {
    GpuSetup::Sizes out = kSizes;
    out.layout = "auto";
    out.batch_invariant = invariant;
    out.draft_tokens = draft_tokens;
    if (draft_tokens > 0) out.draft = model();
    return out;
  }
  static std::string target() { return models + "/tiny-v32"; }
  static bool itself() { return GetParam() == std::string("tiny-v32"); }
};

// A model that drafts for itself is always right where attention is cut by a request's own keys.
TEST_P(GpuDraftModel, DraftsChangeNoToken) {
  const Golden golden(models + "/../tests/data", "tiny_v32");
  const std::vector<Prompt> prompts = {{.answer = 40, .text = golden.ids("short.prompt")},
                                       {.answer = 40, .text = golden.ids("long.prompt")},
                                       {.tokens = 120, .answer = 40},
                                       {.tokens = 300, .answer = 40, .temperature = 0.8f}};
  for (const bool invariant : {false, true}) {
    SCOPED_TRACE(invariant ? "batch-invariant" : "");
    const Answers plain = answers_of(target(), sizes(0, invariant), {}, prompts);
    for (const std::int32_t d : {1, 4}) {
      for (const bool eager : {false, true}) {
        SCOPED_TRACE(std::to_string(d) + " drafts" + (eager ? ", eager" : ""));
        EngineOptions options;
        options.debug_nan = eager;
        const Answers got = answers_of(target(), sizes(d, invariant), options, prompts);
        EXPECT_EQ(got.tokens, plain.tokens);
        if (invariant) {
          EXPECT_EQ(got.logits, plain.logits);
        }
        const DraftStats& drafts = got.stats.drafts;
        std::printf("%lld of %lld drafts accepted\n", static_cast<long long>(drafts.all_accepted()),
                    static_cast<long long>(drafts.all_drafted()));
        EXPECT_GT(drafts.all_accepted(), 30);
        if (invariant && itself()) {
          EXPECT_EQ(drafts.all_accepted(), drafts.all_drafted());
        }
      }
    }
  }
}

// Prints the median step of one request, once its steps are recorded.
TEST_P(GpuDraftModel, StepsAndWhatTheyBring) {
  const Golden golden(models + "/../tests/data", "tiny_v32");
  const std::vector<Prompt> prompts = {{.answer = 400, .text = golden.ids("long.prompt")}};
  for (const std::int32_t d : {0, 1, 2, 4}) {
    Answers got = answers_of(target(), sizes(d), {}, prompts, false);
    std::vector<double> ms(got.step_ms.begin() + std::ssize(got.step_ms) / 3, got.step_ms.end());
    std::sort(ms.begin(), ms.end());
    std::printf("%d drafts of a model: %.3f ms a step, %.2f tokens in a check, %zu steps\n", d,
                ms[ms.size() / 2], got.stats.drafts.acceptance_length(), got.step_ms.size());
  }
}

// Prints the median step of one request, once its steps are recorded.
TEST_P(GpuEngine, StepsThatCheckDraftsTakeLittleMore) {
  const std::vector<Prompt> prompts = {{100, 400}};
  const std::int32_t vocab = load_model_config(model())->vocab;
  GpuSetup::Sizes sizes = kSizes;
  const Answers plain = answers_of(model(), sizes, {}, prompts, false);
  for (const std::int32_t d : {0, 1, 3, 7}) {
    sizes.draft_tokens = d;
    ScriptedDrafter drafter = drafter_of(plain, prompts, vocab, Guess::right);
    EngineOptions options;
    if (d > 0) options.drafter = &drafter, options.draft_tokens = d;
    Answers got = answers_of(model(), sizes, options, prompts, false);
    std::vector<double> ms(got.step_ms.begin() + std::ssize(got.step_ms) / 3, got.step_ms.end());
    std::sort(ms.begin(), ms.end());
    std::printf("%d drafts: %.3f ms a step, %.2f tokens in a check\n", d, ms[ms.size() / 2],
                got.stats.drafts.acceptance_length());
    EXPECT_EQ(got.tokens, plain.tokens);
  }
}

std::int64_t free_bytes() {
  std::size_t free = 0, all = 0;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
  return static_cast<std::int64_t>(free);
}

TEST_P(GpuEngine, MemoryAtTheEndIsAsAtTheStart) {
  answers_of(model(), kSizes, {}, kPrompts);  // the driver's one-time memory: modules and contexts
  const std::int64_t before = free_bytes();
  for (int repeat = 0; repeat < 3; ++repeat) answers_of(model(), kSizes, {}, kPrompts);
  EXPECT_EQ(free_bytes(), before);
}

TEST_P(GpuDraftModel, MemoryAtTheEndIsAsAtTheStart) {
  answers_of(target(), sizes(3), {}, kPrompts);
  const std::int64_t before = free_bytes();
  for (int repeat = 0; repeat < 3; ++repeat) answers_of(target(), sizes(3), {}, kPrompts);
  EXPECT_EQ(free_bytes(), before);
}

// Random arrivals, cancels and preemptions in a cache that is too small for the requests.
void soak(const std::string& model, GpuSetup::Sizes sizes) {
  const char* given = std::getenv("LATHE_SOAK_STEPS");
  const int steps = given != nullptr ? std::atoi(given) : 2000;
  const std::uint32_t seed = std::random_device{}();
  std::printf("seed %u, %d steps\n", seed, steps);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  EngineOptions options;
  options.chunked_prefill_size = 96;
  sizes.context = 512;
  sizes.cache_tokens = 24 * 64;
  sizes.requests = 8;
  GpuSetup setup(model, sizes, options);
  Engine& engine = setup.engine();
  std::vector<RequestId> alive;
  std::int64_t submitted = 0, ended = 0, cancelled = 0;
  const auto step = [&] {
    if (!engine.in_flight()) {
      ASSERT_TRUE(engine.launch().ok());
    }
    engine.launch_ahead();
    // Some cancels arrive while a step is in flight.
    if (!alive.empty() && below(25) == 0) {
      cancelled +=
          engine.cancel(alive[static_cast<std::size_t>(below(static_cast<int>(alive.size())))]);
    }
    const auto report = engine.collect();
    ASSERT_TRUE(report.ok()) << report.error().message();
    for (const auto& t : report->tokens) {
      ASSERT_GE(t.sampled.token, 0);
      ASSERT_LT(t.sampled.token, setup.config().vocab);
    }
    for (const auto& f : report->finished) {
      EXPECT_FALSE(f.error.has_value()) << f.error->message();
      std::erase_if(alive, [&](RequestId id) { return id == f.request; });
      ++ended;
    }
  };
  for (int i = 0; i < steps; ++i) {
    if (std::ssize(alive) < 14 && below(3) == 0) {
      Request r;
      r.prompt = some_tokens(1 + below(250), setup.config().vocab);
      r.prompt[static_cast<std::size_t>(below(static_cast<int>(r.prompt.size())))] = 7;
      r.sampling.temperature = below(2) == 0 ? 0.0f : 0.9f;
      r.sampling.top_p = below(2) == 0 ? 1.0f : 0.9f;
      r.sampling.ignore_eos = true;
      r.sampling.max_tokens = 1 + below(120);
      const auto id = engine.submit(std::move(r));
      ASSERT_TRUE(id.ok()) << id.error().message();
      alive.push_back(*id);
      ++submitted;
    }
    ASSERT_NO_FATAL_FAILURE(step());
  }
  while (!engine.idle()) ASSERT_NO_FATAL_FAILURE(step());
  const EngineStats stats = engine.stats();
  std::printf("%lld requests, %lld cancelled, %lld preemptions, %lld cached tokens\n",
              static_cast<long long>(submitted), static_cast<long long>(cancelled),
              static_cast<long long>(stats.preemptions),
              static_cast<long long>(stats.cached_tokens));
  EXPECT_EQ(ended, submitted);
  EXPECT_EQ(stats.held_pages, 0);
  if (!sizes.draft.empty()) {
    EXPECT_EQ(setup.held_by_drafts(), 0);
    EXPECT_GT(stats.drafts.all_accepted(), 0);
  }
  if (steps >= 500) {
    EXPECT_GT(stats.preemptions, 0);
    EXPECT_GT(cancelled, 0);
    EXPECT_GT(stats.cached_tokens, 0);
  }
}

TEST_P(GpuEngine, LivesThroughASoak) { soak(model(), {}); }
TEST_P(GpuMtp, LivesThroughASoak) { soak(model(), {.draft_tokens = 3, .mtp = true}); }
TEST_P(GpuDraftModel, LivesThroughASoak) { soak(target(), sizes(3)); }

// TinyV4 of tiny-v4.
std::string test_name(const ::testing::TestParamInfo<const char*>& model) {
  std::string out;
  for (const char* c = model.param; *c != 0; ++c) {
    const bool first = c == model.param || c[-1] == '-';
    if (*c != '-') out += first ? static_cast<char>(std::toupper(*c)) : *c;
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Models, GpuEngine, ::testing::Values("tiny-gqa", "tiny-v32", "tiny-v4"),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Models, GpuMtp, ::testing::Values("tiny-v32", "tiny-v4"), test_name);
INSTANTIATE_TEST_SUITE_P(Models, GpuDraftModel, ::testing::Values("tiny-gqa", "tiny-v32"),
                         test_name);

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') lathe::models = argv[1];
  return lathe::cuda::gpu_test_main(argc, argv);
}
