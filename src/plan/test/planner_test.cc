#include "plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "plan/explain.h"
#include "plan/matrix.h"
#include "plan/rules.h"
#include "plan/test/described_test_kernels.h"

namespace lathe {
namespace {

using testing::able;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::kH200;
using testing::with;

// A way to break each rule: how to restrict a kernel that accepts everything, and what to ask.
struct Break {
  Rule rule;
  std::function<void(Capability&)> narrow;
  std::function<void(AttentionProblem&, PlanRequest&)> ask;
  std::string says;  // wanted and offered, as printed
};

std::vector<Break> breaks() {
  const auto none = [](Capability&) {};
  const auto nothing = [](AttentionProblem&, PlanRequest&) {};
  return {
      {Rule::request, none, [](auto&, PlanRequest& request) { request.prefill = "flashinfer"; },
       "auto, gather, inplace, native, ragged (or flashmla_auto, flashmla_sparse"},
      {Rule::request, none, [](auto&, PlanRequest& request) { request.chunked_prefill_size = -1; },
       "wanted 1 to 2147483647   offered -1\n  try --chunked-prefill-size 8192\n"},
      {Rule::request, none, [](auto&, PlanRequest& request) { request.max_running_requests = 0; },
       "wanted 1 to 2147483647   offered 0\n  try --max-running-requests 256\n"},
      {Rule::request, none, [](auto&, PlanRequest& request) { request.max_total_tokens = -1; },
       "wanted 0 to 1099511627776   offered -1\n  try --max-total-tokens 0\n"},
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
      {Rule::window, [](Capability& c) { c.whole_page_chunks = true; },
       [](AttentionProblem& p, PlanRequest& request) {
         p = gqa_problem();
         p.window = 96;
         p.chunked = true;
         request.page_size = 64;
       },
       "wanted a multiple of the page size, 64   offered 96"},
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
      {Rule::bits, [](Capability& c) { c.batch_invariant = false; },
       [](auto&, PlanRequest& request) { request.batch_invariant = true; },
       "wanted those of the whole step   offered --batch-invariant"},
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
    // The request is legal without the restriction.
    ASSERT_TRUE(make_plan(problem, kH200, request, with(able("k"))));
    Capability c = able("k");
    b.narrow(c);
    b.ask(problem, request);
    const PlanResult plan = make_plan(problem, kH200, request, with(c));
    ASSERT_FALSE(plan);
    bool found = false;
    for (const Reason& r : plan.error().reasons) found |= r.rule == b.rule;
    EXPECT_TRUE(found) << explain(plan.error());
    // Columns are padded to a common width; ignore the padding.
    std::string text = explain(plan.error());
    for (std::size_t at; (at = text.find("    ")) != std::string::npos;) text.erase(at, 1);
    EXPECT_THAT(text, HasSubstr(b.says));
    seen.insert(b.rule);
  }
  // `pair` needs two kernels (EachSideFitsAlone), `ranks` a model (plan_ranks_test.cc).
  seen.insert({Rule::pair, Rule::ranks});
  for (Rule r : enum_values<Rule>()) EXPECT_TRUE(seen.contains(r)) << name(r);
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

// Every suggestion gives a plan.
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

// 4 * (5 * rows + 1) bytes fit in a block's 227 KiB of shared memory for up to 11622 rows. The 228
// KiB of a multiprocessor would hold 11673.
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
  // Drafts count as rows of the decode side.
  PlanRequest request;
  request.max_running_requests = 4000;
  request.draft_tokens = 2;
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, request, with(bounded));
  ASSERT_FALSE(plan);
  EXPECT_THAT(explain(plan.error()), HasSubstr("--max-running-requests 3874"));
}

// Batches beyond a fast kernel's bound go to a slower kernel without a bound.
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

// A kernel with least_rows comes before one for all batches. If it is asked for by name, least_rows
// does not apply.
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
  // Dense problems do not have this bound.
  const PlanResult dense = make_plan(deepseek_v3_problem(), kH200, {}, r);
  ASSERT_TRUE(dense);
  EXPECT_EQ(dense->route(Phase::extend, 100, 100000)->kernel, "ragged");
}

TEST(Planner, AutoLosesNoPrecisionUnasked) {
  const PlanResult plan = make_plan(deepseek_v32_problem(), kH200, {}, with(able("k")));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->main().layout.kind(), LayoutKind::mla_bf16);
  // With a kernel that reads only fp8 there is no choice.
  Capability fp8 = able("fp8");
  fp8.layouts = {LayoutKind::mla_fp8_block, LayoutKind::mla_fp8};
  // With 128 heads the tensor cores are the limit, and both fp8 layouts are equally fast. The one
  // with scales per tile is more precise.
  const PlanResult wide = make_plan(deepseek_v32_problem(128), kH200, {}, with(fp8));
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->main().layout.kind(), LayoutKind::mla_fp8_block);
  // With 8 heads memory is the limit, and 576 bytes are faster than 656.
  const PlanResult narrow = make_plan(deepseek_v32_problem(8), kH200, {}, with(fp8));
  ASSERT_TRUE(narrow);
  EXPECT_EQ(narrow->main().layout.kind(), LayoutKind::mla_fp8);
  // V4's own precision is an fp8 cache.
  const PlanResult v4 = make_plan(deepseek_v4_problem(), kH200, {}, with(able("k")));
  ASSERT_TRUE(v4);
  EXPECT_EQ(v4->main().layout.kind(), LayoutKind::v4_fp8);
}

TEST(Planner, PoolsOfV4DivideOnePage) {
  const PlanResult usual = make_plan(deepseek_v4_problem(64, 4), kH200, {}, with(able("k")));
  ASSERT_TRUE(usual);
  EXPECT_EQ(usual->main().page_size, 128);
  EXPECT_EQ(usual->cache(CacheRole::compressed)->page_size, 32);
  // The bytes of pages of 256 tokens.
  PlanRequest wide;
  wide.page_size = 256;
  const PlanResult c4 = make_plan(deepseek_v4_problem(64, 4), kH200, wide, with(able("k")));
  ASSERT_TRUE(c4);
  ASSERT_EQ(c4->caches.size(), 3u);
  EXPECT_EQ(c4->main().page_bytes(), 149760);
  EXPECT_EQ(c4->cache(CacheRole::compressed)->page_bytes(), 37440);
  EXPECT_EQ(c4->cache(CacheRole::index)->page_bytes(), 8448);
  const PlanResult c128 = make_plan(deepseek_v4_problem(64, 128), kH200, wide, with(able("k")));
  ASSERT_TRUE(c128);
  EXPECT_EQ(c128->cache(CacheRole::compressed)->page_bytes(), 1728);
  EXPECT_EQ(c128->cache(CacheRole::index), nullptr);
  const PlanResult window = make_plan(deepseek_v4_problem(64, 0), kH200, wide, with(able("k")));
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

TEST(Planner, OtherEnginesNamesOfCacheFormats) {
  const auto layout_of = [](AttentionProblem problem, const char* kv_dtype, const char* layout) {
    PlanRequest request;
    request.kv_dtype = kv_dtype;
    request.layout = layout;
    Capability any = able("a");
    any.problems = {problem.kind};
    const PlanResult plan = make_plan(problem, kH200, request, with(any));
    return plan ? std::string(plan->caches.front().layout.name()) : explain(plan.error());
  };
  const AttentionProblem v32 = deepseek_v32_problem();
  EXPECT_EQ(layout_of(v32, "bfloat16", "auto"), layout_of(v32, "bf16", "auto"));
  EXPECT_EQ(layout_of(v32, "fp8", "auto"), layout_of(v32, "fp8_e4m3", "auto"));
  EXPECT_EQ(layout_of(v32, "fp8_ds_mla", "auto"), "mla_fp8_block");
  EXPECT_EQ(layout_of(v32, "fp8_ds_mla", "mla_fp8_block(scale=raw_f32)"), "mla_fp8_block");
  EXPECT_THAT(layout_of(v32, "fp8_ds_mla", "mla_fp8"),
              HasSubstr("wanted mla_fp8_block, which fp8_ds_mla is   offered mla_fp8"));
  EXPECT_THAT(layout_of(v32, "bfloat16", "mla_fp8"),
              HasSubstr("wanted bfloat16   offered e4m3 of mla_fp8"));
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
