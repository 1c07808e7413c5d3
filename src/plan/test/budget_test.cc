#include "plan/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "plan/explain.h"
#include "plan/planner.h"
#include "plan/test/described_test_kernels.h"

namespace lathe {
namespace {

using testing::able;
using ::testing::HasSubstr;
using testing::kH200;
using testing::with;

TEST(Budgets, WorkedExamples) {
  PlanRequest request;
  request.chunked_prefill_size = 4096;
  request.context_length = 131072;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, with(able("k")));
  ASSERT_TRUE(plan);
  const auto find = [&](std::string_view n, Demand d) -> Budget {
    for (const Budget& b : budgets_for(*plan, kH200, request, d)) {
      if (meaning(b.kind) == n) return b;
    }
    return {};
  };
  // 4096 rows x 131072 keys x 4 B = 2 GiB, tiled into 512 MiB: 1024 rows at a time.
  EXPECT_EQ(find("indexer logits", {4096, 256, 131072}).bytes, std::int64_t{512} << 20);
  EXPECT_EQ(find("indexer logits", {4096, 256, 131072}).tile_rows, 1024);
  // 100 rows x 1000 keys fit: 400,000 B, no tiling.
  EXPECT_EQ(find("indexer logits", {100, 1, 1000}).bytes, 400000);
  EXPECT_EQ(find("indexer logits", {100, 1, 1000}).tile_rows, 0);
  EXPECT_EQ(find("top-k rows", {4096, 256, 131072}).bytes, 4096 * 2048 * 4);
  // 1152 + 132 bytes per token in 61 layers, in whole pages of 64.
  EXPECT_EQ(cache_bytes(*plan, 6400), std::int64_t{6400} * (1152 + 132) * 61);
  EXPECT_EQ(cache_bytes(*plan, 6401), std::int64_t{6464} * (1152 + 132) * 61);
}

// 16 tokens share an index key: a page of 128 has eight, and a list also holds a row's own group.
TEST(Budgets, TokensThatShareAnIndexKey) {
  AttentionProblem problem = deepseek_v32_problem();
  problem.index_pool = 16;
  PlanRequest request;
  request.context_length = 131072;
  const PlanResult plan = make_plan(problem, kH200, request, with(able("k")));
  ASSERT_TRUE(plan);
  const CachePlan* index = plan->cache(CacheRole::index);
  ASSERT_NE(index, nullptr);
  EXPECT_EQ(index->page_size, 8);
  EXPECT_EQ(index->tokens_per_entry, 16);
  EXPECT_EQ(cache_bytes(*plan, 6400), (std::int64_t{6400} * 1152 + 400 * 132) * 61);
  for (const Budget& b : budgets_for(*plan, kH200, request, {100, 1, 16000})) {
    if (b.kind == BudgetKind::indexer_logits) {
      EXPECT_EQ(b.bytes, 100 * 1000 * 4);
    }
    if (b.kind == BudgetKind::top_k_rows) {
      EXPECT_EQ(b.bytes, 100 * (2048 + 15 + 128) * 4);
    }
  }
  request.page_size = 40;
  const PlanResult refused = make_plan(problem, kH200, request, with(able("k")));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().reasons.front().wanted, HasSubstr("a multiple of the 16 tokens"));
}

TEST(Budgets, SplitPartialsAndCompressorState) {
  Capability split = able("k");
  split.split_kv = true;
  PlanRequest request;
  const PlanResult plan = make_plan(deepseek_v4_problem(64, 4), kH200, request, with(split));
  ASSERT_TRUE(plan);
  std::map<std::string, std::int64_t> bytes;
  for (const Budget& b : plan->budgets) bytes[std::string(meaning(b.kind))] = b.bytes;
  EXPECT_EQ(bytes["split partials"], std::int64_t{256 + 132} * 64 * 513 * 4);
  // A kernel with a limit for its partial results needs that many bytes for any batch.
  split.split_bytes = 12345;
  const PlanResult bounded = make_plan(deepseek_v4_problem(64, 4), kH200, request, with(split));
  ASSERT_TRUE(bounded);
  for (const Budget& b : bounded->budgets) {
    if (b.kind == BudgetKind::split_partials) {
      EXPECT_EQ(b.bytes, 12345);
    }
  }
  // Per request and layer: two folds of three f32 for each of 512 channels and of the indexer's
  // 128.
  EXPECT_EQ(bytes["compressor state"], std::int64_t{2} * 3 * 4 * (512 + 128) * 256 * 61);
}

// Keys that must be gathered at once: a run of dense keys, a row's selection, a whole request of
// grouped queries.
TEST(Budgets, GatherTakesTheLeastThatEachProblemCanBeCutInto) {
  const auto gathers = [](LayoutKind to) {
    Registry r;
    Capability c = able("k", KernelKind::gather);
    c.layouts = {};
    c.compact_rows = true;
    c.compact_layout = to;
    r.add({c});
    add_adapters(r);
    return r;
  };
  PlanRequest request;
  request.context_length = 100000;
  const auto check = [&](const AttentionProblem& p, LayoutKind to, std::int64_t least,
                         const char* says) {
    request.gather_budget = least;
    const PlanResult plan = make_plan(p, kH200, request, gathers(to));
    ASSERT_TRUE(plan) << explain(plan.error());
    for (const Budget& b : plan->budgets) {
      if (b.kind == BudgetKind::gather) {
        EXPECT_EQ(b.bytes, least);
      }
    }
    request.gather_budget = least - 1;
    const PlanResult refused = make_plan(p, kH200, request, gathers(to));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reasons.at(0).rule, Rule::budget);
    EXPECT_THAT(refused.error().reasons.at(0).wanted, HasSubstr(says));
  };
  check(deepseek_v3_problem(), LayoutKind::mla_bf16, 1024 * 1152, "the 1024 keys of a tile");
  check(deepseek_v32_problem(), LayoutKind::mla_bf16, 2048 * 1152, "the 2048 keys of one row");
  // 128 tokens of the window, and an entry for every 128 tokens.
  check(deepseek_v4_problem(64, 128, 0), LayoutKind::mla_bf16, (128 + 781) * 1024,
        "the 909 keys of one row");
  check(gqa_problem(), LayoutKind::gqa_bf16, std::int64_t{100000} * 4096,
        "the 100000 keys of one request");
}

TEST(Budgets, RowsOfExpandingWorkers) {
  Capability expands = able("k");
  expands.worker_rows = 4096;
  const PlanResult plan = make_plan(deepseek_v3_problem(), kH200, {}, with(expands));
  ASSERT_TRUE(plan);
  const auto bytes = [&](std::int64_t rows) {
    for (const Budget& b : budgets_for(*plan, kH200, {}, {rows, 1, 1000})) {
      if (b.kind == BudgetKind::worker_rows) return b.bytes;
    }
    return std::int64_t{0};
  };
  // For each of 132 processors: f32 queries of 128 + 64 and accumulators of 128.
  EXPECT_EQ(bytes(100), std::int64_t{132} * 100 * 320 * 4);
  EXPECT_EQ(bytes(100000), std::int64_t{132} * 4096 * 320 * 4);
}

// Absurd but legal numbers give a plan or a refusal. Sanitiser builds check the arithmetic.
TEST(Budgets, ExtremesDoNotWrap) {
  Capability split = able("k");
  split.split_kv = true;
  PlanRequest request;
  request.chunked_prefill_size = INT32_MAX;
  request.max_running_requests = INT32_MAX;
  request.draft_tokens = 1024;
  request.context_length = INT32_MAX;
  request.layers = 100000;
  request.max_total_tokens = std::int64_t{1} << 40;
  for (AttentionProblem p : {deepseek_v32_problem(), deepseek_v4_problem(128, 4),
                             deepseek_v4_problem(128, 128), gqa_problem(128, 128, 1024)}) {
    if (p.sparse()) p.top_k = INT32_MAX;
    const PlanResult plan = make_plan(p, kH200, request, with(split));
    ASSERT_FALSE(plan);
    for (const Reason& r : plan.error().reasons) {
      EXPECT_THAT(r.wanted + r.offered, ::testing::Not(::testing::ContainsRegex("-[0-9]")));
    }
  }
  request.max_total_tokens = 0;
  Machine vast = kH200;
  vast.memory_bytes = INT64_MAX;
  const PlanResult plan = make_plan(gqa_problem(128, 128, 1024), vast, request, with(able("k")));
  ASSERT_TRUE(plan);
  for (const Budget& b : plan->budgets) EXPECT_GT(b.bytes, 0) << meaning(b.kind);
}

// If buffers exceed the machine, the proposed sizes fit and slightly larger ones do not.
TEST(Budgets, AreHeldAgainstTheMachine) {
  const Registry registry = with(able("k"));
  const auto check = [&](std::int64_t PlanRequest::*size, const std::string& flag) {
    PlanRequest request;
    request.*size = 1000000000;
    const PlanResult refused = make_plan(deepseek_v32_problem(), kH200, request, registry);
    ASSERT_FALSE(refused) << flag;
    const Reason& reason = refused.error().reasons.at(0);
    EXPECT_EQ(reason.rule, Rule::memory);
    EXPECT_THAT(reason.wanted, HasSubstr("139.0 GiB"));
    EXPECT_THAT(reason.offered, HasSubstr("top-k rows 7.5 TiB"));
    ASSERT_EQ(refused.error().suggestions.size(), 1u) << flag;
    const std::string& way = refused.error().suggestions[0];
    ASSERT_TRUE(way.starts_with(flag + " ")) << way;
    request.*size = std::stoll(way.substr(flag.size()));
    EXPECT_TRUE(make_plan(deepseek_v32_problem(), kH200, request, registry)) << way;
    request.*size += 64;
    EXPECT_FALSE(make_plan(deepseek_v32_problem(), kH200, request, registry)) << way;
  };
  check(&PlanRequest::chunked_prefill_size, "--chunked-prefill-size");
  check(&PlanRequest::max_running_requests, "--max-running-requests");
  // Neither change is enough alone.
  PlanRequest request;
  request.chunked_prefill_size = request.max_running_requests = 1000000000;
  const PlanResult refused = make_plan(deepseek_v32_problem(), kH200, request, registry);
  ASSERT_FALSE(refused);
  ASSERT_EQ(refused.error().suggestions.size(), 1u);
  EXPECT_THAT(refused.error().suggestions[0], HasSubstr(" --max-running-requests 8"));
}

}  // namespace
}  // namespace lathe
