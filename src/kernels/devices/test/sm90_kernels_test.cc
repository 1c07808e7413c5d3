// Plans for a Hopper GPU, made without one.
#include "kernels/cuda/register.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attn/problem_name.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/devices/all.h"
#include "plan/explain.h"
#include "plan/planner.h"

namespace lathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlanResult plan(std::string_view attention, const PlanRequest& request = {},
                const ProblemOptions& dims = {}) {
  return make_plan(*problem_from_name(attention, dims), describe_machine(Device::sm90), request,
                   all_kernels());
}

std::string refusal(std::string_view attention, const PlanRequest& request = {},
                    const ProblemOptions& dims = {}) {
  const PlanResult result = plan(attention, request, dims);
  return result ? "planned" : explain(result.error());
}

TEST(Sm90, PlansEveryLatentProblem) {
  for (const std::string attention : {"mla", "dsa", "v4"}) {
    SCOPED_TRACE(attention);
    const PlanResult result = plan(attention);
    ASSERT_TRUE(result) << explain(result.error());
    EXPECT_EQ(result->device, Device::sm90);
    for (const Phase phase : {Phase::extend, Phase::decode}) {
      const Route& route = result->phase(phase).routes.back();
      EXPECT_TRUE(route.kernel.starts_with("sm90."));
      EXPECT_EQ(route.q_dtype, DType::bf16);
      EXPECT_EQ(route.max_rows, 0);
    }
  }
}

TEST(Sm90, ReadsItsLayoutsInPlaceAndOthersThroughRows) {
  for (const std::string layout : {"mla_bf16", "mla_fp8", "mla_fp8_block"}) {
    SCOPED_TRACE(layout);
    const PlanResult result = plan("dsa", {.decode = "inplace", .layout = layout});
    ASSERT_TRUE(result) << explain(result.error());
    EXPECT_EQ(result->phase(Phase::decode).routes.back().kernel, "sm90.sparse_latent.inplace");
  }
  EXPECT_TRUE(plan("v4", {.decode = "inplace", .layout = "v4_fp8"}));
  EXPECT_TRUE(plan("dsa", {.prefill = "gather", .decode = "gather", .layout = "mla_fp4"}));
  EXPECT_THAT(refusal("dsa", {.decode = "inplace", .layout = "mla_fp4"}),
              AllOf(HasSubstr("sm90.sparse_latent.inplace       layout"),
                    HasSubstr("offered mla_fp4"), HasSubstr("gather")));
}

TEST(Sm90, PlansGroupedQueriesInEveryPhase) {
  for (const std::string layout : {"gqa_bf16", "gqa_fp8"}) {
    SCOPED_TRACE(layout);
    const PlanResult result = plan("gqa", {.layout = layout});
    ASSERT_TRUE(result) << explain(result.error());
    for (const Phase phase : {Phase::extend, Phase::decode, Phase::verify}) {
      const Route& route = result->phase(phase).routes.back();
      EXPECT_EQ(route.kernel, "sm90.grouped_query.inplace");
      EXPECT_EQ(route.q_dtype, DType::bf16);
    }
  }
  const PlanResult native = plan("gqa", {.decode = "native"});
  ASSERT_TRUE(native) << explain(native.error());
  EXPECT_EQ(native->phase(Phase::decode).routes.back().kernel, "sm90.grouped_query.native");
  EXPECT_THAT(refusal("gqa", {.decode = "native", .layout = "gqa_fp8"}),
              AllOf(HasSubstr("sm90.grouped_query.native       layout"), HasSubstr("gqa_fp8")));
  EXPECT_THAT(refusal("gqa", {.page_size = 8}), AllOf(HasSubstr("page"), HasSubstr("offered 8")));
  AttentionProblem problem = gqa_problem(32, 8, 96);
  const PlanResult other = make_plan(problem, describe_machine(Device::sm90), {}, all_kernels());
  ASSERT_FALSE(other);
  EXPECT_THAT(explain(other.error()), AllOf(HasSubstr("64"), HasSubstr("offered 96")));
}

// Chunks are whole pages of the sizes that the kernels read. `auto` takes the first size that
// divides the chunk.
TEST(Sm90, PlansChunksOfWholePages) {
  struct Case {
    std::int32_t chunk, page;
    std::int32_t planned;  // page size; 0: refused
  };
  for (const Case& c : {Case{8192, 0, 64}, Case{8192, 128, 128}, Case{40, 0, 0}, Case{48, 0, 16},
                        Case{32, 0, 32}, Case{96, 64, 0}, Case{96, 32, 32}, Case{16, 32, 0}}) {
    for (const auto& [head, value] : {std::pair{64, 64}, {128, 128}, {192, 128}, {512, 512}}) {
      SCOPED_TRACE(fmt::format("chunk {} page {} head {}", c.chunk, c.page, head));
      AttentionProblem problem = gqa_problem(40, 8, head);
      problem.v_head_dim = value;
      problem.window = c.chunk;
      problem.chunked = true;
      PlanRequest request;
      request.page_size = c.page;
      const PlanResult result =
          make_plan(problem, describe_machine(Device::sm90), request, all_kernels());
      ASSERT_EQ(result.ok(), c.planned != 0) << (result ? "" : explain(result.error()));
      if (result) {
        EXPECT_EQ(result->main().page_size, c.planned);
      } else {
        EXPECT_THAT(explain(result.error()), HasSubstr("multiple of the page size"));
      }
    }
  }
}

// Keys may be wider than values only as 192 is than 128.
TEST(Sm90, PlansKeysOf192WithValuesOf128) {
  AttentionProblem problem = gqa_problem(64, 4, 192);
  for (const auto& [width, kernel] :
       {std::pair{128, "sm90.grouped_query.inplace_192"}, {64, ""}, {192, ""}}) {
    problem.v_head_dim = width;
    const PlanResult result = make_plan(problem, describe_machine(Device::sm90), {}, all_kernels());
    ASSERT_EQ(result.ok(), *kernel != 0) << width;
    if (result) {
      EXPECT_EQ(result->phase(Phase::decode).routes.back().kernel, kernel);
    } else {
      EXPECT_THAT(explain(result.error()), HasSubstr("value head dim"));
    }
  }
  problem = gqa_problem(64, 4, 128);
  problem.v_head_dim = 64;
  EXPECT_FALSE(make_plan(problem, describe_machine(Device::sm90), {}, all_kernels()));
}

// A.X-K2's latents.
TEST(Sm90, PlansListsOfLatentsOf128) {
  AttentionProblem problem = deepseek_v32_problem(32);
  problem.nope = 128;
  problem.rope = 32;
  const PlanResult result = make_plan(problem, describe_machine(Device::sm90), {}, all_kernels());
  ASSERT_TRUE(result) << explain(result.error());
  for (const Phase phase : {Phase::extend, Phase::decode, Phase::verify}) {
    EXPECT_EQ(result->phase(phase).routes.back().kernel, "sm90.sparse_latent.inplace_128");
  }
  problem.nope = 256;
  EXPECT_FALSE(make_plan(problem, describe_machine(Device::sm90), {}, all_kernels()));
}

// GLM-5.3-Flash's latents.
TEST(Sm90, PlansLatentsWithoutRope) {
  AttentionProblem problem = deepseek_v32_problem(64);
  problem.rope = 0;
  problem.qk_nope_head = problem.v_head = 256;
  problem.index_pool = 16;
  PlanRequest request;
  for (const char* layout : {"auto", "mla_bf16", "mla_fp8_block"}) {
    request.layout = layout;
    const PlanResult result =
        make_plan(problem, describe_machine(Device::sm90), request, all_kernels());
    ASSERT_TRUE(result) << explain(result.error());
    for (const Phase phase : {Phase::extend, Phase::decode, Phase::verify}) {
      EXPECT_EQ(result->phase(phase).routes.back().kernel, "sm90.sparse_latent.inplace_512");
    }
  }
  request.layout = "mla_fp8";
  const PlanResult refused =
      make_plan(problem, describe_machine(Device::sm90), request, all_kernels());
  ASSERT_FALSE(refused);
  EXPECT_THAT(explain(refused.error()), HasSubstr("wanted mla_bf16, mla_fp8_block"));
}

TEST(Sm90, ExpandsTheKeysOfLongPrompts) {
  const PlanResult result = plan("mla");
  ASSERT_TRUE(result) << explain(result.error());
  const auto kernel = [&](const Plan& p, std::int64_t rows, std::int64_t request_rows) {
    return p.route(Phase::extend, rows, 8192, request_rows)->kernel;
  };
  EXPECT_EQ(kernel(*result, 8192, 8192), "sm90.dense_latent.ragged");
  EXPECT_EQ(kernel(*result, 20, 20), "sm90.dense_latent.inplace");
  EXPECT_EQ(kernel(*result, 8192, 20), "sm90.dense_latent.inplace");
  EXPECT_THAT(explain(*result), HasSubstr("rows of a request on"));
  EXPECT_EQ(result->phase(Phase::decode).routes.front().kind, KernelKind::inplace);
  ASSERT_NE(result->budget(BudgetKind::expanded_keys), nullptr);
  EXPECT_EQ(result->budget(BudgetKind::expanded_keys)->bytes, std::int64_t{640} << 20);

  // If named, it is used for any number of rows.
  const PlanResult named = plan("mla", {.prefill = "ragged"});
  ASSERT_TRUE(named) << explain(named.error());
  EXPECT_EQ(kernel(*named, 1, 1), "sm90.dense_latent.ragged");
}

TEST(Sm90, ExpandsTheKeysOfPromptsThatChooseNone) {
  const PlanResult result = plan("dsa");
  ASSERT_TRUE(result) << explain(result.error());
  const auto kernel = [&](std::int64_t context, std::int64_t request_rows) {
    return result->route(Phase::extend, 2048, context, request_rows)->kernel;
  };
  EXPECT_EQ(kernel(2048, 2048), "sm90.sparse_latent.ragged");
  EXPECT_EQ(kernel(2048, 20), "sm90.sparse_latent.inplace");
  EXPECT_EQ(kernel(2049, 2048), "sm90.sparse_latent.inplace");
  EXPECT_TRUE(plan("dsa", {.prefill = "ragged", .context_length = 2048}));
  EXPECT_THAT(refusal("dsa", {.prefill = "ragged"}),
              AllOf(HasSubstr("ragged sm90.sparse_latent.ragged   context"),
                    HasSubstr("wanted at most 2048 tokens")));
}

TEST(Sm90, CutsByARequestsOwnKeysWhereAsked) {
  // 64 requests x two blocks of 64 heads x 8 pieces x 64 M rows of 512 sums and a row sum, in f32.
  const PlanRequest request{.chunked_prefill_size = 64,
                            .max_running_requests = 64,
                            .context_length = 32768,
                            .batch_invariant = true};
  const PlanResult result = plan("mla", request);
  ASSERT_TRUE(result) << explain(result.error());
  const std::int64_t decode = 64 * 2 * 8 * 64 * 513 * 4;
  // An extend of the same number of rows starts at most one extra block per request.
  EXPECT_EQ(result->phase(Phase::decode).routes.back().split_bytes, decode);
  EXPECT_EQ(result->phase(Phase::extend).routes.back().split_bytes, decode / 2 * 3);
  EXPECT_EQ(result->budget(BudgetKind::split_partials)->bytes, decode / 2 * 3);
  // Prompts are not expanded: that kernel splits work by the lengths of the whole batch.
  EXPECT_EQ(result->phase(Phase::extend).routes.front().kind, KernelKind::inplace);
}

// A KV head of a request has an M block of its own, and a request of few rows up to 8 pieces.
TEST(Sm90, CutsGroupedQueriesByARequestsOwnKeys) {
  const PlanRequest request{.chunked_prefill_size = 64,
                            .max_running_requests = 64,
                            .context_length = 32768,
                            .batch_invariant = true};
  const PlanResult result = plan("gqa", request);
  ASSERT_TRUE(result) << explain(result.error());
  const AttentionProblem& p = result->problem;
  const auto bytes = [&](std::int64_t block) {
    return 64 * 8 * p.kv_heads * block * (p.v_dim() + 1) * 4 + (1 << 20);
  };
  const std::int64_t group = p.heads / p.kv_heads;
  EXPECT_EQ(result->phase(Phase::decode).routes.back().split_bytes,
            std::max(cuda::kGqaPartialBytes, bytes(8)));
  EXPECT_EQ(result->phase(Phase::extend).routes.back().split_bytes,
            bytes(std::min<std::int64_t>(64, 8 * group)));
}

TEST(Sm90, RefusesToExpandWhatDoesNotFit) {
  // Per key 2 bytes for each of 576 and a head's 256 elements, and a slot, in 640 MiB.
  const std::int64_t keys = (std::int64_t{640} << 20) / (2 * 576 + 4 + 2 * 256);
  EXPECT_THAT(refusal("mla", {.prefill = "ragged", .context_length = 500000}),
              AllOf(HasSubstr("ragged sm90.dense_latent.ragged   context"),
                    HasSubstr("wanted at most " + std::to_string(keys) + " tokens")));
  EXPECT_TRUE(plan("mla", {.prefill = "ragged", .context_length = keys}));
  AttentionProblem problem = deepseek_v3_problem();
  problem.v_head = 64;
  const auto refused =
      make_plan(problem, describe_machine(Device::sm90), {.prefill = "ragged"}, all_kernels());
  ASSERT_FALSE(refused);
  EXPECT_THAT(explain(refused.error()),
              AllOf(HasSubstr("width of a head's values"), HasSubstr("wanted 128 or 256"),
                    HasSubstr("offered 64")));
}

TEST(Sm90, RefusesWhatItDoesNotHave) {
  EXPECT_THAT(refusal("dsa", {.decode = "native", .layout = "mla_fp8_block"}),
              AllOf(HasSubstr("native sm90.sparse_latent.native "),
                    HasSubstr("native sm90.sparse_latent.native_fp8 "),
                    HasSubstr("offered mla_fp8_block")));
}

TEST(Sm90, PlansFp8ArithmeticOnPagesOfPowersOfTwo) {
  const PlanResult result = plan("mla", {.decode = "native", .layout = "mla_fp8"});
  ASSERT_TRUE(result) << explain(result.error());
  const Route& route = result->phase(Phase::decode).routes.back();
  EXPECT_EQ(route.kernel, "sm90.dense_latent.native_fp8");
  EXPECT_EQ(route.q_dtype, DType::e4m3);
  EXPECT_THAT(refusal("mla", {.decode = "native", .layout = "mla_fp8", .page_size = 24}),
              AllOf(HasSubstr("native_fp8"), HasSubstr("page"), HasSubstr("offered 24")));
}

TEST(Sm90, PairsAnyPrefillWithFp8ArithmeticByLists) {
  for (const char* prefill : {"gather", "inplace", "native"}) {
    SCOPED_TRACE(prefill);
    const PlanResult result =
        plan("dsa", {.prefill = prefill, .decode = "native", .layout = "mla_fp8", .page_size = 24});
    ASSERT_TRUE(result) << explain(result.error());
    for (const Phase phase : {Phase::decode, Phase::verify}) {
      const Route& route = result->phase(phase).routes.back();
      EXPECT_EQ(route.kernel, "sm90.sparse_latent.native_fp8");
      EXPECT_EQ(route.q_dtype, DType::e4m3);
    }
  }
}

TEST(Sm90, RefusesOtherWidths) {
  AttentionProblem problem = deepseek_v32_problem();
  problem.rope = 32;
  const PlanResult result = make_plan(problem, describe_machine(Device::sm90), {}, all_kernels());
  ASSERT_FALSE(result);
  EXPECT_THAT(explain(result.error()),
              AllOf(HasSubstr("rope width"), HasSubstr("wanted 64"), HasSubstr("offered 32")));
}

TEST(Sm90, EntriesAreThereWhereCudaIs) {
  Registry registry;
  register_sm90_kernels(registry);
  EXPECT_EQ(registry.kernels().size(), 22u);
  for (const Kernel& k : registry.kernels()) {
#ifdef LATHE_HAS_CUDA
    EXPECT_NE(k.attend, nullptr) << k.capability.name;
#else
    EXPECT_EQ(k.attend, nullptr) << k.capability.name;
#endif
  }
}

}  // namespace
}  // namespace lathe
