// Logits of checkpoints with quantised matrices, against transformers with the matrices dequantised
// by compressed-tensors or the formats' own formulas (tools/fixtures/make_format_fixtures.py).
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

// Weights are exact in f32, so the bound is that of other models in f32 (logits_test.cc).
constexpr double kFormatTolerance = 2e-3;
// In bf16 x is rounded, and int4 weights are: 2^-9 each, on the way through two layers.
constexpr double kFormatToleranceInBf16 = 2e-2;

class FormatLogits : public testing::TestWithParam<const char*> {
 protected:
  FormatLogits() : reference_(GetParam()), model_(load_fixture(GetParam(), &threads_)) {}

  void check(const ModelRunner::Options& options, double tolerance) {
    ModelRunner runner(*model_, options);
    int request = 0;
    for (const int length : {7, 100}) {
      const ReferencePrompt want = reference_.prompt(length);
      const Logits got = runner.prompt(request++, want.tokens);
      const std::size_t vocab = got.front().size();
      for (std::size_t i = 0; i < want.positions.size(); ++i) {
        const auto at = static_cast<std::size_t>(want.positions[i]);
        const auto row = std::span(want.logits_bf16_cache).subspan(i * vocab, vocab);
        EXPECT_LE(relative_error(got[at], row), tolerance)
            << "position " << at << " of " << want.tokens.size();
      }
    }
  }

  ThreadPool threads_{2};
  Reference reference_;
  std::unique_ptr<Model> model_;
};

TEST_P(FormatLogits, AgreeOnTheCpu) { check({.threads = 2}, kFormatTolerance); }

TEST_P(FormatLogits, AgreeOnTheReferenceDevice) {
  check({.device = Device::ref}, kFormatTolerance);
}

TEST_P(FormatLogits, AgreeInBf16) {
  if (!cpu_has_bf16_dot()) GTEST_SKIP() << "this CPU has no dot products of bf16 pairs";
  check({.threads = 2, .precision = MatmulPrecision::bf16}, kFormatToleranceInBf16);
}

TEST_P(FormatLogits, ChunksGiveTheBitsOfOneShot) {
  const std::vector<std::int32_t> tokens = reference_.prompt(100).tokens;
  for (const MatmulPrecision precision : {MatmulPrecision::f32, MatmulPrecision::bf16}) {
    if (precision == MatmulPrecision::bf16 && !cpu_has_bf16_dot()) continue;
    const ModelRunner::Options options{
        .prefill = "inplace", .decode = "inplace", .precision = precision};
    const Logits want = ModelRunner(*model_, options).prompt(0, tokens);
    EXPECT_EQ(ModelRunner(*model_, options).prompt(0, tokens, 17), want) << name(precision);
    EXPECT_EQ(ModelRunner(*model_, options).prompt(0, tokens, 64, 5), want) << name(precision);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FormatLogits,
                         testing::Values("formats_fp8", "formats_int4", "formats_fp4",
                                         "formats_experts"),
                         [](const auto& fixture) { return std::string(fixture.param); });

}  // namespace
}  // namespace lathe
