// Bytes and flops of attention against sums computed by hand.
#include "plan/floor.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

Plan plan_of(const AttentionProblem& problem, LayoutKind layout, std::int32_t layers) {
  Plan plan;
  plan.problem = problem;
  plan.layers = layers;
  plan.index_layers = layers - 1;
  plan.caches.push_back({CacheRole::main, CacheLayout(layout), 64, 1});
  if (problem.two_sources()) {
    plan.caches.push_back({CacheRole::compressed, CacheLayout(layout), 64, problem.compress_ratio});
  }
  if (problem.sparse()) {
    plan.caches.push_back({CacheRole::index, CacheLayout(LayoutKind::index_fp8), 64, 1});
  }
  for (const Phase phase : enum_values<Phase>()) {
    plan.phase(phase).phase = phase;
    plan.phase(phase).routes = {Route{}};
  }
  return plan;
}

TEST(Floor, GroupedQueries) {
  AttentionProblem problem = gqa_problem();  // 32 query heads, 8 KV heads of 128
  Plan plan = plan_of(problem, LayoutKind::gqa_bf16, 3);
  EXPECT_EQ(decode_cache_bytes(plan, 100), 3 * 100 * 2 * 8 * 128 * 2.0);
  // Rows at positions 10 to 13 attend to 11 + 12 + 13 + 14 keys.
  EXPECT_EQ(attention_flops(plan, Phase::extend, 4, 10).attention, 3.0 * 2 * 32 * 50 * (128 + 128));
  plan.problem.window = 8;
  EXPECT_EQ(decode_cache_bytes(plan, 100), 3 * 8 * 2 * 8 * 128 * 2.0);
  // Rows at positions 6 to 9: 7 + 8 + 8 + 8 keys.
  EXPECT_EQ(attention_flops(plan, Phase::extend, 4, 6).attention, 3.0 * 2 * 32 * 31 * (128 + 128));
  EXPECT_EQ(attention_flops(plan, Phase::extend, 4, 6).index, 0);
}

TEST(Floor, ChosenKeys) {
  Plan plan = plan_of(deepseek_v32_problem(), LayoutKind::mla_bf16, 3);  // selects 2048 keys
  const double key = 576 * 2, index_key = 128 + 4;
  EXPECT_EQ(decode_cache_bytes(plan, 2048), 3 * 2048 * key);
  EXPECT_EQ(decode_cache_bytes(plan, 5000), 3 * 2048 * key + 2 * 5000 * index_key);
  const AttentionFlops long_row = attention_flops(plan, Phase::decode, 1, 4999);
  EXPECT_EQ(long_row.attention, 3.0 * 2 * 128 * 2048 * (576 + 512));
  EXPECT_EQ(long_row.index, 2.0 * 2 * 64 * 128 * 5000);
  plan.phase(Phase::extend).routes[0].kind = KernelKind::ragged;
  const AttentionFlops expanded = attention_flops(plan, Phase::extend, 2, 0);
  EXPECT_EQ(expanded.attention, 3.0 * 2 * 128 * (1 + 2) * (128 + 64 + 128));
  EXPECT_EQ(expanded.index, 0);
}

TEST(Floor, WindowAndEntries) {
  // A window of 128, and the 512 selected entries of one for every 4 tokens.
  const Plan plan = plan_of(deepseek_v4_problem(), LayoutKind::v4_fp8, 2);
  const double entry = static_cast<double>(plan.main().page_bytes()) / 64;
  EXPECT_EQ(decode_cache_bytes(plan, 4000), 2 * (128 + 512) * entry + 1 * 1000 * (128 + 4.0));
  EXPECT_EQ(decode_cache_bytes(plan, 100), 2 * (100 + 25) * entry);
}

}  // namespace
}  // namespace lathe
