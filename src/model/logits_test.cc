// Logits against Hugging Face transformers (tests/data/models, made by
// tools/make_model_fixtures.py).
#include "model/test_util.h"

namespace lathe {
namespace {

const char* const kFixtures[] = {
    "llama",           "llama_bias",   "qwen2",       "qwen2_window",
    "qwen3",           "qwen3_moe",    "deepseek_v3", "deepseek_v3_dense",
    "deepseek_v3_fp8", "deepseek_v32", "glm_moe_dsa"};

// bf16 keys and values are the only rounding that transformers does not make.
constexpr double kTolerance = 2e-3;

void compare(const std::string& name, const Logits& got, const ReferencePrompt& want,
             double tolerance) {
  const std::size_t vocab = got.front().size();
  for (std::size_t i = 0; i < want.positions.size(); ++i) {
    const auto at = static_cast<std::size_t>(want.positions[i]);
    const double error = relative_error(got[at], std::span(want.logits).subspan(i * vocab, vocab));
    if (std::getenv("SHOW"))
      printf("%s %zu pos %zu %.2e\n", name.c_str(), want.tokens.size(), at, error);
    EXPECT_LE(error, tolerance) << name << ", position " << at << " of " << want.tokens.size();
  }
}

class Logits_ : public testing::TestWithParam<const char*> {};

TEST_P(Logits_, AgreeOnTheCpu) {
  ThreadPool threads(2);
  const auto model = load_fixture(GetParam(), &threads);
  const Reference reference(GetParam());
  int request = 0;
  Runner runner(*model, {.threads = 2});
  for (const int length : {1, 7, 64, 300}) {
    const ReferencePrompt want = reference.prompt(length);
    compare(GetParam(), runner.prompt(request++, want.tokens), want, kTolerance);
  }
}

TEST_P(Logits_, AgreeOnTheReferenceDevice) {
  const auto model = load_fixture(GetParam());
  const Reference reference(GetParam());
  int request = 0;
  Runner runner(*model, {.device = Device::ref});
  for (const int length : {1, 7, 64}) {
    const ReferencePrompt want = reference.prompt(length);
    compare(GetParam(), runner.prompt(request++, want.tokens), want, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Logits_, testing::ValuesIn(kFixtures),
                         [](const auto& fixture) { return std::string(fixture.param); });

}  // namespace
}  // namespace lathe
