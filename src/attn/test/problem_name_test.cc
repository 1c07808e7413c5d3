#include "attn/problem_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using ::testing::HasSubstr;

TEST(ProblemName, ShortNamesAndKinds) {
  for (const char* dsa : {"dsa", "nsa", "sparse_latent"}) {
    EXPECT_EQ(*problem_from_name(dsa), deepseek_v32_problem()) << dsa;
  }
  for (const char* mla : {"mla", "dense_latent"}) {
    EXPECT_EQ(*problem_from_name(mla), deepseek_v3_problem()) << mla;
  }
  for (const char* v4 : {"v4", "window_compressed"}) {
    EXPECT_EQ(*problem_from_name(v4), deepseek_v4_problem()) << v4;
  }
  for (const char* gqa : {"gqa", "grouped_query"}) {
    EXPECT_EQ(*problem_from_name(gqa), gqa_problem()) << gqa;
  }
}

TEST(ProblemName, UnknownNameListsTheKnownOnes) {
  const auto unknown = problem_from_name("mha");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().field, "--attention");
  EXPECT_THAT(unknown.error().message(), HasSubstr("one of mla, dsa, v4, gqa, dense_latent"));
  EXPECT_THAT(unknown.error().message(), HasSubstr("got \"mha\""));
}

TEST(ProblemName, OptionsReplaceTheFamilysDims) {
  EXPECT_EQ(*problem_from_name("gqa", {.heads = 16, .kv_heads = 4, .head_dim = 64}),
            gqa_problem(16, 4, 64));
  EXPECT_EQ(*problem_from_name("v4", {.heads = 8, .compress_ratio = 128}),
            deepseek_v4_problem(8, 128));
  // 0 is a ratio (the window alone); below 0 means that none is given.
  EXPECT_FALSE(problem_from_name("v4", {.compress_ratio = 0})->two_sources());
  EXPECT_EQ(problem_from_name("v4", {.compress_ratio = -1})->compress_ratio, 4);
  const auto odd = problem_from_name("v4", {.compress_ratio = 5});
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().field, "--compress-ratio");

  const auto p = problem_from_name("dsa", {.heads = 16, .top_k = 64, .window = 7, .sink = true});
  EXPECT_EQ(p->heads, 16);
  EXPECT_EQ(p->top_k, 64);
  EXPECT_EQ(p->window, 7);
  EXPECT_TRUE(p->sink);
  EXPECT_FALSE(problem_from_name("dsa")->sink);
  EXPECT_TRUE(problem_from_name("v4")->sink);
}

TEST(ProblemName, OptionsOfAnotherFamilyAreRefused) {
  const auto field = [](std::string_view attention, const ProblemOptions& options) {
    const auto problem = problem_from_name(attention, options);
    return problem ? std::string("accepted") : problem.error().field;
  };
  for (const char* other : {"mla", "dsa", "v4"}) {
    EXPECT_EQ(field(other, {.kv_heads = 8}), "--kv-heads") << other;
    EXPECT_EQ(field(other, {.head_dim = 64}), "--head-dim") << other;
  }
  for (const char* other : {"mla", "dsa", "gqa"}) {
    EXPECT_EQ(field(other, {.compress_ratio = 4}), "--compress-ratio") << other;
  }
}

}  // namespace
}  // namespace lathe
