// Logits against Hugging Face transformers (tests/data/models, made by
// tools/fixtures/make_model_fixtures.py); of llama4_chunks against loops of numpy that have
// transformers' logits of llama4 (make_chunk_fixture.py).
#include "model/test/generated_checkpoint.h"
#include "model/test/test_util.h"
#include "model/test/wide_model_checks.h"

namespace lathe {
namespace {

const char* const kFixtures[] = {"llama",
                                 "llama_bias",
                                 "qwen2",
                                 "qwen2_window",
                                 "qwen3",
                                 "qwen3_moe",
                                 "deepseek_v3",
                                 "deepseek_v3_dense",
                                 "deepseek_v3_fp8",
                                 "deepseek_v32",
                                 "glm_moe_dsa",
                                 "glm4_moe_lite",
                                 "youtu",
                                 "sarvam_mla",
                                 "deepseek_v2",
                                 "deepseek_v2_lite",
                                 "ministral3_tower",
                                 "gemma3_tower",
                                 "qwen3_vl",
                                 "qwen3_vl_moe",
                                 "kimi_k25",
                                 "ministral3",
                                 "glm4_moe_dense",
                                 "mixtral",
                                 "minimax_m2",
                                 "glm4_moe",
                                 "smollm3",
                                 "seed_oss",
                                 "granite",
                                 "olmo2",
                                 "olmo3",
                                 "exaone4",
                                 "glm4",
                                 "phi3",
                                 "gemma4",
                                 "gemma4_moe",
                                 "mimo_v2_flash",
                                 "mistral4",
                                 "minicpm3",
                                 "qwen3_5",
                                 "qwen3_5_moe",
                                 "qwen3_next",
                                 "kimi_linear",
                                 "bailing_hybrid",
                                 "hy_v4",
                                 "axk2",
                                 "glm5_next",
                                 "gemma4_shared",
                                 "axk1",
                                 "llama4",
                                 "llama4_chunks"};

// Bound against the reference with a bf16 cache like Lathe's: covers the order of summation, and
// cache elements that round differently because of it.
constexpr double kTolerance = 2e-3;
// Bound against the reference in f32 throughout. In these models half of the signal is attention:
// rounding the cache moves transformers' own logits by up to 1.4e-2, and by 2.5e-2 if it changes a
// selection of keys.
constexpr double kExactTolerance = 5e-2;

// The largest error against the reference with a bf16 cache.
double compare(const std::string& name, const Logits& got, const ReferencePrompt& want) {
  double worst = 0;
  const std::size_t vocab = got.front().size();
  for (std::size_t i = 0; i < want.positions.size(); ++i) {
    const auto at = static_cast<std::size_t>(want.positions[i]);
    const auto row = [&](const std::vector<float>& logits) {
      return std::span(logits).subspan(i * vocab, vocab);
    };
    const double error = relative_error(got[at], row(want.logits_bf16_cache));
    worst = std::max(worst, error);
    EXPECT_LE(error, kTolerance) << name << ", position " << at << " of " << want.tokens.size();
    EXPECT_LE(relative_error(got[at], row(want.logits)), kExactTolerance)
        << name << ", position " << at << " of " << want.tokens.size();
  }
  return worst;
}

// Two of three layers choose keys; the third reuses the second's.
TEST(ModelCache, LayersThatShareASelectionHaveNoIndexCache) {
  const auto model = load_fixture("glm_moe_dsa");
  ModelRunner runner(*model, {.layout = "mla_bf16"});
  const Plan& plan = runner.plan();
  const std::int64_t page =
      3 * plan.main().page_bytes() + 2 * plan.cache(CacheRole::index)->page_bytes();
  EXPECT_EQ(runner.cache().bytes(), runner.cache().pools().pages() * page);
}

// RoPE tables have a row for each position that a request can reach, not for each of the plan's
// context: 8 million positions need gigabytes.
TEST(ModelCache, E13PositionsAreThoseThatPagesHold) {
  const auto positions = [](const std::string& name, std::int64_t context, std::int64_t pages) {
    const ModelConfig config = *load_model_config(fixture_dir(name));
    PlanRequest request;
    request.context_length = context;
    request.page_size = 64;
    const ModelPlan plan = *make_model_plan(config.layer_groups(), describe_machine(Device::cpu),
                                            request, all_kernels());
    const std::vector<PoolSize> sizes(plan.groups.size(), {.pages = pages});
    return KvCache::create(plan, sizes)->positions();
  };
  EXPECT_EQ(positions("qwen3", std::int64_t{8} << 20, 8), 512);
  EXPECT_EQ(positions("deepseek_v3", std::int64_t{8} << 20, 8), 512);
  EXPECT_EQ(positions("qwen3", 100, 8), 100);
  // Layers with windows release pages: alone they hold any number of tokens, next to others none.
  EXPECT_EQ(positions("qwen2_window", 1 << 20, 8), 1 << 20);
  EXPECT_EQ(positions("gemma3", 1 << 20, 8), 512);
}

class ModelLogits : public testing::TestWithParam<const char*> {};

TEST_P(ModelLogits, AgreeOnTheCpu) {
  ThreadPool threads(2);
  const auto model = load_fixture(GetParam(), &threads);
  const Reference reference(GetParam());
  int request = 0;
  ModelRunner runner(*model, {.threads = 2});
  double worst = 0;
  for (const int length : {1, 7, 64, 300}) {
    const ReferencePrompt want = reference.prompt(length);
    worst = std::max(worst, compare(GetParam(), runner.prompt(request++, want.tokens), want));
  }
  RecordProperty("worst_relative_error", std::to_string(worst));  // --gtest_output=xml
}

TEST_P(ModelLogits, AgreeOnTheReferenceDevice) {
  const auto model = load_fixture(GetParam());
  const Reference reference(GetParam());
  int request = 0;
  ModelRunner runner(*model, {.device = Device::ref});
  for (const int length : {1, 7, 64}) {
    const ReferencePrompt want = reference.prompt(length);
    compare(GetParam(), runner.prompt(request++, want.tokens), want);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelLogits, testing::ValuesIn(kFixtures),
                         [](const auto& fixture) { return std::string(fixture.param); });

// Fixtures with generated weights (tools/fixtures/make_generated_fixtures.py): sizes from 512 on,
// layers with windows, prompts longer than them and than 1024 tokens.
class GeneratedLogits : public testing::TestWithParam<const char*> {
 protected:
  GeneratedLogits() : checkpoint_(fixture_dir(GetParam())), reference_(GetParam()) {
    LoadOptions options;
    options.threads = &threads_;
    auto model = load_model(checkpoint_.dir(), options);
    EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
    model_ = std::move(*model);
  }
  static ModelRunner::Options options(Device device) {
    return {.device = device, .threads = device == Device::cpu ? 2 : 1, .context = 1200};
  }

  ThreadPool threads_{2};
  GeneratedCheckpoint checkpoint_;
  Reference reference_;
  std::unique_ptr<Model> model_;
};

TEST_P(GeneratedLogits, AgreeOnTheCpu) {
  int request = 0;
  ModelRunner runner(*model_, options(Device::cpu));
  double worst = 0;
  for (const int length : {7, 160, 1100}) {
    const ReferencePrompt want = reference_.prompt(length);
    worst = std::max(worst, compare(GetParam(), runner.prompt(request++, want.tokens), want));
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_P(GeneratedLogits, AgreeOnTheReferenceDevice) {
  // Double precision is slow.
  const ReferencePrompt want =
      reference_.prompt(GetParam() == std::string_view("gemma3") ? 7 : 160);
  ModelRunner runner(*model_, options(Device::ref));
  compare(GetParam(), runner.prompt(0, want.tokens), want);
}

// For all chunk sizes, and all splits between prefill and decode.
TEST_P(GeneratedLogits, ChunksGiveTheBitsOfOneShot) {
  std::vector<std::int32_t> tokens = reference_.prompt(1100).tokens;
  tokens.resize(300);
  ModelRunner::Options inplace = options(Device::cpu);
  inplace.prefill = inplace.decode = "inplace";
  const Logits want = ModelRunner(*model_, inplace).prompt(0, tokens);
  EXPECT_EQ(ModelRunner(*model_, inplace).prompt(0, tokens, 64), want);
  EXPECT_EQ(ModelRunner(*model_, inplace).prompt(0, tokens, 131, 9), want);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GeneratedLogits,
                         testing::Values("gpt_oss", "gpt_oss_bf16", "gemma3", "gemma3_new",
                                         "mistral", "qwen2_mixed"),
                         [](const auto& fixture) { return std::string(fixture.param); });

TEST(WideModel, AsTransformers) { check_given_checkpoint(/*threads=*/2); }

}  // namespace
}  // namespace lathe
