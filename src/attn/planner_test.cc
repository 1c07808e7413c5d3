#include "attn/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "attn/budget.h"
#include "attn/described_test_kernels.h"
#include "attn/explain.h"
#include "attn/matrix.h"
#include "attn/rules.h"

namespace lathe {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// A kernel of sm90 that can do everything, to be narrowed by a test.
Capability able(std::string name, KernelKind kind = KernelKind::inplace) {
  Capability c;
  c.name = std::move(name);
  c.kind = kind;
  c.devices = {Device::sm90};
  c.problems = EnumSet<ProblemKind>::all();
  c.phases = EnumSet<Phase>::all();
  c.layouts = EnumSet<LayoutKind>::all();
  return c;
}

Registry with(Capability c) {
  Registry r;
  r.add({std::move(c)});
  return r;
}

const Machine kH200 = describe_machine(Device::sm90);

// One way to break each rule: what to narrow on an able kernel, and what to ask.
struct Break {
  Rule rule;
  std::function<void(Capability&)> narrow;
  std::function<void(AttentionProblem&, PlanRequest&)> ask;
  std::string says;  // wanted and offered, as the reader sees them
};

std::vector<Break> breaks() {
  const auto none = [](Capability&) {};
  const auto nothing = [](AttentionProblem&, PlanRequest&) {};
  return {
      {Rule::request, none, [](auto&, PlanRequest& request) { request.prefill = "flashinfer"; },
       "auto, gather, inplace, native, ragged (or flashmla_auto, flashmla_sparse"},
      {Rule::request, none, [](auto&, PlanRequest& request) { request.chunked_prefill_size = -1; },
       "wanted 1 to 2147483647   offered -1"},
      {Rule::request, none, [](auto&, PlanRequest& request) { request.layout = "mla_fp9"; },
       "one of mla_bf16"},
      {Rule::request, none, [](AttentionProblem& p, auto&) { p.heads = 129; }, "1 to 128 per rank"},
      {Rule::request, none, [](AttentionProblem& p, auto&) { p.window = 5; },
       "wanted 0 for sparse_latent   offered 5"},
      {Rule::dtype, none, [](auto&, PlanRequest& request) { request.kv_dtype = "fp8_e5m2"; },
       "auto, bf16, fp8_e4m3 or fp4_e2m1"},
      {Rule::dtype, none,
       [](auto&, PlanRequest& request) {
         request.kv_dtype = "bf16";
         request.layout = "mla_fp8";
       },
       "wanted bf16   offered e4m3 of mla_fp8"},
      {Rule::device, [](Capability& c) { c.devices = {Device::sm100}; }, nothing,
       "wanted one for sm90   offered kernels for sm100"},
      {Rule::problem, [](Capability& c) { c.problems = {ProblemKind::dense_latent}; }, nothing,
       "wanted dense_latent   offered sparse_latent"},
      {Rule::problem, none, [](auto&, PlanRequest& request) { request.layout = "gqa_bf16"; },
       "wanted mla_bf16, mla_fp8, mla_fp8_block, mla_fp4   offered gqa_bf16"},
      {Rule::phase, [](Capability& c) { c.phases = {Phase::extend}; }, nothing,
       "wanted extend   offered decode"},
      {Rule::homogeneous, [](Capability& c) { c.homogeneous_only = true; },
       [](auto&, PlanRequest& request) { request.layout = "mla_fp8_block"; },
       "wanted homogeneous   offered mla_fp8_block (e4m3 nope, bf16 rope)"},
      {Rule::layout, [](Capability& c) { c.layouts = {LayoutKind::mla_fp8}; },
       [](auto&, PlanRequest& request) { request.layout = "mla_bf16"; },
       "wanted mla_fp8   offered mla_bf16"},
      {Rule::adapter,
       [](Capability& c) {
         c.layouts = {LayoutKind::mla_bf16};
         c.compact_rows = true;
       },
       [](auto&, PlanRequest& request) { request.layout = "mla_fp8"; },
       "wanted mla_bf16 rows, or an adapter that makes them   offered mla_fp8, no adapter in "
       "extend"},
      {Rule::scale_policy, [](Capability& c) { c.scale_policies = {ScalePolicy::pow2_ceil}; },
       [](auto&, PlanRequest& request) { request.layout = "mla_fp8_block(scale=raw_f32)"; },
       "wanted pow2_ceil   offered raw_f32 of mla_fp8_block"},
      {Rule::dims, [](Capability& c) { c.nope = Accepts::list({512}); },
       [](AttentionProblem& p, auto&) { p.nope = 256; }, "wanted 512   offered 256"},
      {Rule::dims,
       [](Capability& c) {
         c.head_dim = Accepts::list({64, 128});
       },
       [](AttentionProblem& p, auto&) { p = gqa_problem(32, 8, 96); },
       "wanted 64 or 128   offered 96"},
      {Rule::dims, none, [](auto&, PlanRequest& request) { request.layout = "mla_fp8(nope=256)"; },
       "wanted mla_fp8(nope=512,rope=64,scale=per_tensor)"},
      {Rule::heads,
       [](Capability& c) {
         c.heads = Accepts::list({64, 128});
       },
       [](AttentionProblem& p, auto&) { p.heads = 16; }, "wanted 64 or 128   offered 16"},
      {Rule::page_size, [](Capability& c) { c.page_sizes = Accepts::list({64}); },
       [](auto&, PlanRequest& request) { request.page_size = 32; }, "wanted 64   offered 32"},
      {Rule::top_k, [](Capability& c) { c.top_k = Accepts::multiple_of(128); },
       [](AttentionProblem& p, auto&) { p.top_k = 2000; },
       "wanted a multiple of 128   offered 2000"},
      {Rule::window, [](Capability& c) { c.window = false; },
       [](AttentionProblem& p, auto&) { p = deepseek_v4_problem(); }, "offered 128 tokens"},
      {Rule::sink, [](Capability& c) { c.sink = false; },
       [](AttentionProblem& p, auto&) { p.sink = true; }, "offered a sink per head"},
      {Rule::two_sources, [](Capability& c) { c.two_sources = false; },
       [](AttentionProblem& p, auto&) { p = deepseek_v4_problem(); },
       "wanted one source of keys   offered a window and compressed entries"},
      {Rule::rows, [](Capability& c) { c.schedule = {.fixed = 4, .per_row = 20}; },
       [](auto&, PlanRequest& request) { request.chunked_prefill_size = 32768; },
       "wanted at most 11622   offered 32768"},
      {Rule::context, [](Capability& c) { c.context_within_top_k = true; }, nothing,
       "wanted at most 2048 tokens   offered 131072"},
      {Rule::graph, [](Capability& c) { c.graph_safe = false; }, nothing,
       "wanted no CUDA graph   offered decode steps captured in a CUDA graph"},
      {Rule::budget, none, [](auto&, PlanRequest& request) { request.logits_budget = 1000; },
       "wanted at least one row, 524288 bytes   offered 1000 bytes"},
      {Rule::memory, none,
       [](auto&, PlanRequest& request) { request.max_total_tokens = 100'000'000; },
       "offered 100000000 tokens"},
  };
}

TEST(Planner, EveryRuleSaysWantedAndOffered) {
  std::set<Rule> seen;
  for (const Break& b : breaks()) {
    SCOPED_TRACE(std::string(name(b.rule)) + ": " + b.says);
    AttentionProblem problem = deepseek_v32_problem();
    PlanRequest request;
    // The same request is legal until it is broken.
    ASSERT_TRUE(make_plan(problem, kH200, request, with(able("k"))));
    Capability c = able("k");
    b.narrow(c);
    b.ask(problem, request);
    const PlanResult plan = make_plan(problem, kH200, request, with(c));
    ASSERT_FALSE(plan);
    bool found = false;
    for (const Reason& r : plan.error().reasons) found |= r.rule == b.rule;
    EXPECT_TRUE(found) << explain(plan.error());
    // Columns are padded to a common width; the test reads through that.
    std::string text = explain(plan.error());
    for (std::size_t at; (at = text.find("    ")) != std::string::npos;) text.erase(at, 1);
    EXPECT_THAT(text, HasSubstr(b.says));
    seen.insert(b.rule);
  }
  // `pair` needs two kernels: see EachSideFitsAlone.
  for (Rule r : enum_values<Rule>()) EXPECT_TRUE(r == Rule::pair || seen.contains(r)) << name(r);
}

TEST(Planner, EachSideFitsAlone) {
  Capability a = able("a");
  a.layouts = {LayoutKind::mla_fp8_block};
  Capability b = able("b", KernelKind::native);
  b.layouts = {LayoutKind::mla_fp8};
  Registry r = with(a);
  r.add({b});
  PlanRequest request;
  request.kv_dtype = "fp8_e4m3";
  request.prefill = "inplace";
  request.decode = "native";
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, r);
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().headline, HasSubstr("no layout fits both sides"));
  ASSERT_GE(plan.error().reasons.size(), 2u);
  EXPECT_EQ(plan.error().reasons[0].rule, Rule::pair);
  EXPECT_EQ(plan.error().reasons[0].wanted, "mla_fp8_block");
  EXPECT_EQ(plan.error().reasons[0].offered, "mla_fp8 of decode native");
  EXPECT_THAT(plan.error().suggestions, Contains("--decode-attention-backend inplace"));
  EXPECT_THAT(plan.error().suggestions, Contains("--prefill-attention-backend native"));
}

// Every suggestion, followed, gives a plan.
TEST(Planner, SuggestionsAreLegal) {
  Capability a = able("a");
  a.layouts = {LayoutKind::mla_fp8_block, LayoutKind::mla_bf16};
  Capability b = able("b", KernelKind::native);
  b.homogeneous_only = true;
  Registry r = with(a);
  r.add({b});
  PlanRequest request;
  request.layout = "mla_fp8_block";
  request.decode = "native";
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, r);
  ASSERT_FALSE(plan);
  ASSERT_FALSE(plan.error().suggestions.empty());
  for (const std::string& s : plan.error().suggestions) {
    PlanRequest then = request;
    const std::string value = s.substr(s.find(' ') + 1);
    if (s.starts_with("--decode-attention-backend")) then.decode = value;
    if (s.starts_with("--kv-layout")) then.layout = value;
    EXPECT_TRUE(make_plan(deepseek_v32_problem(), kH200, then, r)) << s;
  }
}

// 227 KiB of a block's shared memory hold 4 * (5 rows + 1) bytes up to 11622 rows, not the 11673
// that a multiprocessor's 228 would.
TEST(Planner, RowBoundComesFromTheMachine) {
  Capability bounded = able("bounded");
  bounded.schedule = {.fixed = 4, .per_row = 20};
  for (const auto& [rows, legal] :
       {std::pair{11622, true}, {11623, false}, {11673, false}, {11674, false}}) {
    PlanRequest request;
    request.chunked_prefill_size = rows;
    const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, with(bounded));
    EXPECT_EQ(plan.ok(), legal) << rows;
    if (legal) {
      EXPECT_EQ(plan->phase(Phase::extend).routes[0].max_rows, 11622);
      EXPECT_EQ(plan->route(Phase::extend, 11622, 100)->kernel, "bounded");
      EXPECT_EQ(plan->route(Phase::extend, 11623, 100), nullptr);
    } else {
      EXPECT_THAT(explain(plan.error()), HasSubstr("--chunked-prefill-size 11622"));
    }
  }
  // The decode side counts drafted rows.
  PlanRequest request;
  request.max_running_requests = 4000;
  request.draft_tokens = 2;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, with(bounded));
  ASSERT_FALSE(plan);
  EXPECT_THAT(explain(plan.error()), HasSubstr("--max-running-requests 3874"));
}

// Beyond a fast kernel's bound a slower one without a bound takes over.
TEST(Planner, RoutesChangeAtTheBound) {
  Capability fast = able("fast");
  fast.schedule = {.fixed = 4, .per_row = 20};
  Capability slow = able("slow", KernelKind::native);
  slow.flops_share = 0.1;
  slow.bytes_share = 0.1;
  Registry r = with(fast);
  r.add({slow});
  PlanRequest request;
  request.chunked_prefill_size = 32768;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, r);
  ASSERT_TRUE(plan) << explain(plan.error());
  ASSERT_EQ(plan->phase(Phase::extend).routes.size(), 2u);
  EXPECT_EQ(plan->route(Phase::extend, 11622, 100000)->kernel, "fast");
  EXPECT_EQ(plan->route(Phase::extend, 11623, 100000)->kernel, "slow");
  EXPECT_EQ(plan->route(Phase::decode, 256, 100000)->kernel, "fast");
  EXPECT_THAT(explain(*plan), HasSubstr("up to 11,622 rows"));
}

// A kernel with a least number of rows stands before one that takes all, unless it is named.
TEST(Planner, KernelsForManyRowsOfARequestAreBounded) {
  Capability many = able("many", KernelKind::ragged);
  many.phases = {Phase::extend};
  many.least_rows = 100;
  many.flops_share = 0.9;
  Registry r;
  r.add({many});
  r.add({able("any")});
  const PlanResult plan = make_plan(deepseek_v3_problem(), describe_machine(Device::sm90), {}, r);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->route(Phase::extend, 500, 9000, 100)->kernel, "many");
  EXPECT_EQ(plan->route(Phase::extend, 500, 9000, 99)->kernel, "any");
  EXPECT_EQ(plan->phase(Phase::decode).routes.size(), 1u);
  PlanRequest request;
  request.prefill = "ragged";
  const PlanResult named =
      make_plan(deepseek_v3_problem(), describe_machine(Device::sm90), request, r);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->route(Phase::extend, 1, 9000, 1)->kernel, "many");
}

TEST(Planner, RaggedServesSparseModelsWhileTheSelectionIsEverything) {
  Capability ragged = able("ragged", KernelKind::ragged);
  ragged.phases = {Phase::extend};
  ragged.context_within_top_k = true;
  Registry r = with(able("inplace"));
  r.add({ragged});
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, {}, r);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->route(Phase::extend, 100, 2048)->kernel, "ragged");
  EXPECT_EQ(plan->route(Phase::extend, 100, 2049)->kernel, "inplace");
  // Dense problems have no such bound.
  const PlanResult dense = make_plan(deepseek_v3_problem(), kH200, {}, r);
  ASSERT_TRUE(dense);
  EXPECT_EQ(dense->route(Phase::extend, 100, 100000)->kernel, "ragged");
}

TEST(Planner, AutoLosesNoPrecisionUnasked) {
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, {}, with(able("k")));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->main().layout.kind(), LayoutKind::mla_bf16);
  // A kernel that reads only fp8 leaves no choice.
  Capability fp8 = able("fp8");
  fp8.layouts = {LayoutKind::mla_fp8_block, LayoutKind::mla_fp8};
  // With 128 heads the tensor cores are the limit and both fp8 layouts take as long: the one with
  // scales per tile is more precise.
  const PlanResult wide = make_plan(deepseek_v32_problem(128), kH200, {}, with(fp8));
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->main().layout.kind(), LayoutKind::mla_fp8_block);
  // With 8 heads the bytes are, and 576 beat 656.
  const PlanResult narrow = make_plan(deepseek_v32_problem(8), kH200, {}, with(fp8));
  ASSERT_TRUE(narrow);
  EXPECT_EQ(narrow->main().layout.kind(), LayoutKind::mla_fp8);
  // V4's own precision is its fp8 cache.
  const PlanResult v4 = make_plan(deepseek_v4_problem(), kH200, {}, with(able("k")));
  ASSERT_TRUE(v4);
  EXPECT_EQ(v4->main().layout.kind(), LayoutKind::v4_fp8);
}

TEST(Planner, PoolsOfV4DivideOnePage) {
  const PlanResult c4 = make_plan(deepseek_v4_problem(64, 4), kH200, {}, with(able("k")));
  ASSERT_TRUE(c4);
  ASSERT_EQ(c4->caches.size(), 3u);
  EXPECT_EQ(c4->main().page_bytes(), 149760);
  EXPECT_EQ(c4->cache(CacheRole::compressed)->page_bytes(), 37440);
  EXPECT_EQ(c4->cache(CacheRole::index)->page_bytes(), 8448);
  const PlanResult c128 = make_plan(deepseek_v4_problem(64, 128), kH200, {}, with(able("k")));
  ASSERT_TRUE(c128);
  EXPECT_EQ(c128->cache(CacheRole::compressed)->page_bytes(), 1728);
  EXPECT_EQ(c128->cache(CacheRole::index), nullptr);
  const PlanResult window = make_plan(deepseek_v4_problem(64, 0), kH200, {}, with(able("k")));
  ASSERT_TRUE(window);
  EXPECT_EQ(window->caches.size(), 1u);
  PlanRequest odd;
  odd.page_size = 100;
  EXPECT_FALSE(make_plan(deepseek_v4_problem(64, 128), kH200, odd, with(able("k"))));
}

TEST(Planner, TablesArePaddedToTheCommonMultiple) {
  Capability a = able("a");
  a.table_tokens = 128;
  a.page_sizes = Accepts::list({32});
  Capability b = able("b", KernelKind::native);
  b.table_tokens = 96;
  Registry r = with(a);
  r.add({b});
  PlanRequest request;
  request.prefill = "inplace";
  request.decode = "native";
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, r);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->table_multiple, 12);  // lcm(32, 128, 96) = 384 tokens
}

TEST(Planner, RopeAndQFollowFromTheRoute) {
  Registry r = with(able("a"));
  Capability native = able("b", KernelKind::native);
  native.homogeneous_only = true;
  r.add({native});
  PlanRequest request;
  request.kv_dtype = "fp8_e4m3";
  request.prefill = "inplace";
  request.decode = "native";
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, r);
  ASSERT_TRUE(plan);
  EXPECT_THAT(explain(*plan), HasSubstr("q leaves as bf16 for extend, e4m3 for decode"));
  EXPECT_EQ(plan->phase(Phase::decode).routes[0].arithmetic, Arithmetic::fp8);
  request.kv_dtype = "bf16";
  const PlanResult bf16 = make_plan(deepseek_v32_problem(), kH200, request, r);
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->phase(Phase::decode).routes[0].q_dtype, DType::bf16);
}

TEST(Planner, VerifyIsNeededOnlyWithDrafts) {
  Capability decode_only = able("k");
  decode_only.phases = {Phase::extend, Phase::decode};
  EXPECT_TRUE(make_plan(deepseek_v32_problem(), kH200, {}, with(decode_only)));
  PlanRequest request;
  request.draft_tokens = 4;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, with(decode_only));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().reasons[0].rule, Rule::phase);
  EXPECT_EQ(plan.error().reasons[0].offered, "verify");
}

TEST(Planner, AVerifyStepHasARowOfEachRequestAndOneOfEachDraft) {
  PlanRequest request;
  request.chunked_prefill_size = 64;
  request.max_running_requests = 100;
  request.draft_tokens = 4;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, with(able("k")));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->max_rows, 500);
  EXPECT_EQ(plan->draft_tokens, 4);
  EXPECT_THAT(explain(*plan),
              HasSubstr("drafts    up to 4 of a request, 500 rows in a verify step"));
  request.draft_tokens = 0;
  const PlanResult without = make_plan(deepseek_v32_problem(), kH200, request, with(able("k")));
  ASSERT_TRUE(without);
  EXPECT_EQ(without->max_rows, 100);
  EXPECT_THAT(explain(*without), ::testing::Not(HasSubstr("drafts")));
}

TEST(Planner, EmptyRegistryIsARefusal) {
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, {}, Registry());
  ASSERT_FALSE(plan);
  EXPECT_THAT(explain(plan.error()), HasSubstr("no kernels at all"));
}

TEST(Planner, RejectionsAreKept) {
  const Registry kernels = testing::upstream_kernels();
  PlanRequest request;
  request.kv_dtype = "fp8_e4m3";
  std::vector<Rejection> rejections;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, kernels, &rejections);
  ASSERT_TRUE(plan);
  const auto fa3 = std::find_if(rejections.begin(), rejections.end(),
                                [](const Rejection& r) { return r.kernel == "fa3"; });
  ASSERT_NE(fa3, rejections.end());
  EXPECT_EQ(fa3->reasons[0].rule, Rule::layout);
}

TEST(Planner, PhaseOfEveryBatch) {
  EXPECT_EQ(phase_of(BatchMode::idle), Phase::decode);
  EXPECT_EQ(phase_of(BatchMode::mixed), Phase::extend);
  EXPECT_EQ(phase_of(BatchMode::extend), Phase::extend);
  EXPECT_EQ(phase_of(BatchMode::decode), Phase::decode);
  EXPECT_EQ(phase_of(BatchMode::target_verify), Phase::verify);
  EXPECT_EQ(phase_of(BatchMode::draft_extend), Phase::draft_extend);
  EXPECT_EQ(side_of(Phase::extend), Side::prefill);
  EXPECT_EQ(side_of(Phase::draft_extend), Side::decode);
}

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
  // 1152 + 132 bytes a token over 61 layers, in whole pages of 64.
  EXPECT_EQ(cache_bytes(*plan, 6400), std::int64_t{6400} * (1152 + 132) * 61);
  EXPECT_EQ(cache_bytes(*plan, 6401), std::int64_t{6464} * (1152 + 132) * 61);
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
  // A kernel that cuts no further than a ceiling needs the ceiling, whatever the batch.
  split.split_bytes = 12345;
  const PlanResult bounded = make_plan(deepseek_v4_problem(64, 4), kH200, request, with(split));
  ASSERT_TRUE(bounded);
  for (const Budget& b : bounded->budgets) {
    if (b.kind == BudgetKind::split_partials) {
      EXPECT_EQ(b.bytes, 12345);
    }
  }
  // Two folds of three f32 for each of 512 channels and of the indexer's 128, per request and
  // layer.
  EXPECT_EQ(bytes["compressor state"], std::int64_t{2} * 3 * 4 * (512 + 128) * 256 * 61);
}

// What must be gathered at once: a tile of dense keys, one row's selection, one request of grouped
// queries.
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
  // 128 tokens of the window and an entry of every 128 tokens.
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
  // f32 queries of 128 + 64 and accumulators of 128 for each of 132 processors.
  EXPECT_EQ(bytes(100), std::int64_t{132} * 100 * 320 * 4);
  EXPECT_EQ(bytes(100000), std::int64_t{132} * 4096 * 320 * 4);
}

// Absurd but legal numbers give a plan or a refusal; the sanitisers watch the arithmetic.
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

// Buffers alone can exceed the machine; what is proposed instead fits, and hardly more does.
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
  // Neither alone is enough.
  PlanRequest request;
  request.chunked_prefill_size = request.max_running_requests = 1000000000;
  const PlanResult refused = make_plan(deepseek_v32_problem(), kH200, request, registry);
  ASSERT_FALSE(refused);
  ASSERT_EQ(refused.error().suggestions.size(), 1u);
  EXPECT_THAT(refused.error().suggestions[0], HasSubstr(" --max-running-requests 8"));
}

TEST(Accepts, Text) {
  EXPECT_EQ(Accepts::list({64, 128}).text(), "64 or 128");
  EXPECT_EQ(Accepts::list({16, 32, 64}).text(), "16, 32 or 64");
  EXPECT_EQ(Accepts::multiple_of(128).text(), "a multiple of 128");
  EXPECT_EQ(Accepts::range(1, 128).text(), "1 to 128");
  EXPECT_EQ(Accepts::any().text(), "any");
  EXPECT_TRUE(Accepts::multiple_of(128).contains(256));
  EXPECT_FALSE(Accepts::multiple_of(128).contains(0));
}

TEST(Matrix, CountsAndMarks) {
  Registry r = with(able("a"));
  Capability native = able("b", KernelKind::native);
  native.homogeneous_only = true;
  r.add({native});
  const auto cells = make_matrix(deepseek_v32_problem(), kH200, {}, r);
  ASSERT_EQ(cells.size(), 4u * 4 * 4);
  for (const MatrixCell& c : cells) {
    const auto can = [](KernelKind k) {
      return k == KernelKind::inplace || k == KernelKind::native;
    };
    const bool mixed = c.layout == LayoutKind::mla_fp8_block &&
                       (c.prefill == KernelKind::native || c.decode == KernelKind::native);
    EXPECT_EQ(c.result.ok(), can(c.prefill) && can(c.decode) && !mixed)
        << name(c.prefill) << " " << name(c.decode) << " " << name(c.layout);
  }
  EXPECT_THAT(explain_matrix(cells, false), HasSubstr("homogeneous"));
  EXPECT_THAT(explain_matrix(cells, false), ::testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(explain_matrix(cells, true), HasSubstr("\x1b[32m"));
}

}  // namespace
}  // namespace lathe
