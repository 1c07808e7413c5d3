// A request's bits do not depend on its chunks, its batch, the number of threads, or which kind of
// kernel reads a bf16 cache.
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

using Chunk = ModelRunner::Chunk;

std::vector<std::int32_t> tokens_of(const std::string& fixture, int length) {
  return Reference(fixture).prompt(length).tokens;
}

// One kind for both phases, because the expanded and the absorbed form round differently.
const ModelRunner::Options kInplace{.prefill = "inplace", .decode = "inplace"};

TEST(Equality, ChunksGiveTheBitsOfOneShot) {
  for (const char* name :
       {"qwen3_moe", "qwen2_window", "deepseek_v3", "glm_moe_dsa", "qwen3_5", "qwen3_next", "hy_v4",
        "axk2", "glm5_next", "gemma4_shared", "llama4", "llama4_chunks"}) {
    const auto model = load_fixture(name);
    std::vector<std::int32_t> tokens = tokens_of(name, 300);
    tokens.resize(150);
    const Logits want = ModelRunner(*model, kInplace).prompt(0, tokens);
    for (const std::size_t chunk : {1, 7, 64}) {
      EXPECT_EQ(ModelRunner(*model, kInplace).prompt(0, tokens, chunk), want)
          << name << " " << chunk;
    }
    // Decodes the last rows.
    EXPECT_EQ(ModelRunner(*model, kInplace).prompt(0, tokens, 64, 9), want) << name;
  }
}

// bf16 dot products are within the error of rounding every activation to bf16 (2^-9 in each
// product, amplified by attention), and are invariant as well.
TEST(Equality, Bf16ProductsAreCloseAndInvariant) {
  if (!cpu_has_bf16_dot()) GTEST_SKIP() << "this CPU has no dot products of bf16 pairs";
  for (const char* name : {"qwen3_moe", "deepseek_v3", "deepseek_v3_fp8"}) {
    const auto model = load_fixture(name);
    const std::vector<std::int32_t> longer = tokens_of(name, 64), shorter = tokens_of(name, 7);
    ModelRunner::Options options = kInplace;
    const Logits exact = ModelRunner(*model, options).prompt(0, longer);
    options.precision = MatmulPrecision::bf16;
    const Logits want = ModelRunner(*model, options).prompt(0, longer);
    double worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      worst = std::max(worst, relative_error(want[i], exact[i]));
    }
    EXPECT_LE(worst, 3e-2) << name;
    EXPECT_GT(worst, 0) << name;
    RecordProperty(name, std::to_string(worst));

    EXPECT_EQ(ModelRunner(*model, options).prompt(0, longer, 7), want) << name;
    EXPECT_EQ(ModelRunner(*model, options).prompt(0, longer, 20, 9), want) << name;
    options.threads = 2;
    ModelRunner runner(*model, options);
    const Logits both = runner.step({{1, shorter}, {0, longer}});
    EXPECT_EQ(Logits(both.begin() + 7, both.end()), want) << name;
  }
}

TEST(Equality, CompanyChangesNothing) {
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3", "deepseek_v32", "qwen3_5_moe"}) {
    const auto model = load_fixture(name);
    const std::vector<std::int32_t> longer = tokens_of(name, 64), shorter = tokens_of(name, 7);
    const Logits alone = ModelRunner(*model, kInplace).prompt(0, longer);
    const Logits other = ModelRunner(*model, kInplace).prompt(1, shorter);
    ModelRunner::Options two_threads = kInplace;
    two_threads.threads = 2;
    ModelRunner runner(*model, two_threads);

    // Request 1 prefills together with request 0, and decodes its last token together with 0's
    // second chunk.
    const std::vector<std::int32_t> head(longer.begin(), longer.begin() + 20);
    const std::vector<std::int32_t> tail(longer.begin() + 20, longer.end());
    const std::vector<std::int32_t> most(shorter.begin(), shorter.end() - 1);
    Logits first = runner.step({{1, most}, {0, head}});
    const Logits second = runner.step({{0, tail}}, {{1, {shorter.back()}}});
    Logits got(first.begin() + 6, first.end());
    got.insert(got.end(), second.begin(), second.end() - 1);
    EXPECT_EQ(got, alone) << name;
    first.resize(6);
    first.push_back(second.back());
    EXPECT_EQ(first, other) << name;
  }
}

TEST(Equality, KindsAgreeOnABf16Cache) {
  for (const char* name : {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}) {
    const auto model = load_fixture(name);
    const std::vector<std::int32_t> tokens = tokens_of(name, 64);
    ModelRunner::Options options{.layout = "mla_bf16", .prefill = "inplace", .decode = "inplace"};
    const Logits want = ModelRunner(*model, options).prompt(0, tokens, 30, 3);
    for (const char* kind : {"gather", "native"}) {
      options.prefill = options.decode = kind;
      EXPECT_EQ(ModelRunner(*model, options).prompt(0, tokens, 30, 3), want) << name << " " << kind;
    }
  }
}

// Through the adapter: compact bf16 rows are exact if scales are powers of two.
TEST(Equality, GatheredRowsAgreeWithPages) {
  const auto model = load_fixture("deepseek_v3");
  const std::vector<std::int32_t> tokens = tokens_of("deepseek_v3", 64);
  for (const char* layout : {"mla_fp8", "mla_fp8_block", "mla_fp4"}) {
    for (const Device device : {Device::cpu, Device::ref}) {
      ModelRunner::Options options{
          .device = device, .layout = layout, .prefill = "inplace", .decode = "inplace"};
      const Logits want = ModelRunner(*model, options).prompt(0, tokens, 0, 2);
      options.prefill = options.decode = "gather";
      const Logits got = ModelRunner(*model, options).prompt(0, tokens, 0, 2);
      // The ref device does not promise equal bits for page tables and lists.
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (device == Device::cpu) {
          ASSERT_EQ(got[i], want[i]) << layout << ", row " << i;
        } else {
          ASSERT_LE(relative_error(got[i], want[i]), 1e-5) << layout << ", row " << i;
        }
      }
    }
  }
}

TEST(Equality, GroupedQueryRowsAreGathered) {
  for (const char* name : {"qwen3", "qwen2_window"}) {
    const auto model = load_fixture(name);
    const std::vector<std::int32_t> tokens = tokens_of(name, 64);
    for (const char* layout : {"gqa_bf16", "gqa_fp8"}) {
      ModelRunner::Options options{.layout = layout, .prefill = "inplace", .decode = "inplace"};
      const Logits want = ModelRunner(*model, options).prompt(0, tokens, 0, 2);
      options.prefill = options.decode = "gather";
      const Logits got = ModelRunner(*model, options).prompt(0, tokens, 0, 2);
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_LE(relative_error(got[i], want[i]), 1e-5) << name << " " << layout << ", row " << i;
      }
    }
  }
}

TEST(Equality, ExpandedAgreesWithAbsorbed) {
  for (const char* name : {"deepseek_v3", "deepseek_v3_fp8", "deepseek_v32", "glm_moe_dsa"}) {
    const auto model = load_fixture(name);
    std::vector<std::int32_t> tokens = tokens_of(name, 64);
    // Sparse models use the expanded form only while top-k would choose every key.
    const bool sparse = model->config().groups.front().problem.sparse();
    if (sparse) tokens.resize(40);
    ModelRunner::Options options = kInplace;
    options.context = sparse ? 40 : 64;
    const Logits want = ModelRunner(*model, options).prompt(0, tokens, 0, 3);
    options.prefill = "ragged";
    ModelRunner runner(*model, options);
    ASSERT_EQ(runner.plan().phase(Phase::extend).routes.front().kind, KernelKind::ragged);
    const Logits got = runner.prompt(0, tokens, 0, 3);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_LE(relative_error(got[i], want[i]), 2e-3) << name << ", row " << i;
    }
  }
}

TEST(Forward, AllocatesNoMemoryOnceWarm) {
  const auto model = load_fixture("deepseek_v3");
  ModelRunner runner(*model, kInplace);
  runner.prompt(0, tokens_of("deepseek_v3", 64));
  const std::int64_t growths = runner.arena().growths();
  runner.prompt(1, tokens_of("deepseek_v3", 64), 0, 3);
  EXPECT_EQ(runner.arena().growths(), growths);
}

TEST(Forward, NamesTheRowAndLayerOfNan) {
  const auto model = load_fixture("qwen3");
  ModelRunner runner(*model, kInplace);
  runner.find_non_finite();
  const std::vector<std::int32_t> tokens = tokens_of("qwen3", 7);
  runner.step({{0, tokens}});
  EXPECT_TRUE(runner.result().non_finite.empty());
  // NaN in request 0's keys of layer 1 reaches its next row, and no other request's.
  PoolView pool = runner.cache().main(1);
  std::memset(pool.data, 0xff, static_cast<std::size_t>(pool.bytes()));
  runner.step({{1, tokens}}, {{0, {3}}});
  ASSERT_EQ(runner.result().non_finite.size(), 1u);
  EXPECT_EQ(runner.result().non_finite[0].row, 7);
  EXPECT_EQ(runner.result().non_finite[0].layer, 1);
}

TEST(Forward, NoRowsAreLegal) {
  const auto model = load_fixture("qwen3");
  ModelRunner runner(*model, kInplace);
  EXPECT_TRUE(runner.step({}).empty());
}

}  // namespace
}  // namespace lathe
