// A separate draft model and its target on one emulated CUDA backend. They share a stream, buffers
// and recordings; each has its own pools.
#include "engine/draft/test/mtp_test_util.h"
#include "engine/test/gpu_engine_test_util.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe {
namespace {

const std::string kTarget = std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32";
const std::string kDraft = std::string(LATHE_TEST_DATA) + "/../../models/tiny-gqa";

GpuSetup::Sizes sizes_of(const std::string& draft, std::int32_t draft_tokens) {
  return {.context = 128,
          .plain_products = true,
          .draft_tokens = draft_tokens,
          .batch_invariant = true,
          .draft = draft};
}

// A prompt of a task that both models were trained on, and sampled noise.
const std::vector<Prompt>& prompts() {
  static const std::vector<Prompt> out = {{.answer = 9, .text = Golden().ids("short.prompt")},
                                          {.tokens = 3, .answer = 7, .temperature = 0.9f}};
  return out;
}

// Answers of the target alone, with the layout that it has in the pair.
const Answers& plain() {
  static const Answers out = [] {
    GpuSetup::Sizes sizes = sizes_of("", 0);
    sizes.layout = "auto";
    return answers_of(kTarget, sizes, {}, prompts());
  }();
  return out;
}

// Equal to the bit, because the target's attention is cut by a request's own keys. The draft
// model's grouped-query attention is not, and need not be.
TEST(GpuDraftModel, ItsDraftsChangeNoToken) {
  const std::int64_t before = cuda::fake::counts().graph_launches;
  const Answers got = answers_of(kTarget, sizes_of(kDraft, 3), {}, prompts());
  EXPECT_GT(cuda::fake::counts().graph_launches, before + 3);
  EXPECT_EQ(got.tokens, plain().tokens);
  EXPECT_EQ(got.logits, plain().logits);
  const DraftStats& drafts = got.stats.drafts;
  std::printf("%lld of %lld drafts accepted\n", static_cast<long long>(drafts.all_accepted()),
              static_cast<long long>(drafts.all_drafted()));
  EXPECT_GT(drafts.all_accepted(), 3);
  EXPECT_LT(got.stats.steps, plain().stats.steps);
}

TEST(GpuDraftModel, TheSameModelIsAlwaysRight) {
  const Answers got = answers_of(kTarget, sizes_of(kTarget, 3), {}, prompts());
  EXPECT_EQ(got.tokens, plain().tokens);
  EXPECT_EQ(got.logits, plain().logits);
  EXPECT_GT(got.stats.drafts.all_drafted(), 5);
  EXPECT_EQ(got.stats.drafts.all_accepted(), got.stats.drafts.all_drafted());
}

void submit(GpuSetup& setup, std::vector<std::int32_t> prompt, std::int32_t answer,
            float temperature = 0) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = temperature;
  r.sampling.ignore_eos = true;
  r.sampling.max_tokens = answer;
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
}

// A step with a draft has one launch and one wait for each model, and the host reads only tokens.
TEST(GpuDraftModel, WaitsForItsDraftsAlone) {
  GpuSetup setup(kTarget, sizes_of(kDraft, 1), {});
  submit(setup, Golden().ids("short.prompt"), 14);
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(setup.engine().step().ok());
  const cuda::fake::Counts before = cuda::fake::counts();
  const auto report = setup.engine().step();
  const cuda::fake::Counts after = cuda::fake::counts();
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->drafted, 1);
  EXPECT_EQ(after.waits, before.waits + 2);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 2);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  EXPECT_EQ(after.copies_out, before.copies_out);  // kernels write the tokens to host memory
}

// Both models use the memory that their plans name, and free all of it.
TEST(GpuDraftModel, AllocatesWhatBothPlansName) {
  constexpr std::int32_t kContext = 64, kDrafts = 3;
  const std::int64_t before = cuda::fake::device_bytes();
  {
    GpuSetup::Sizes sizes = sizes_of(kDraft, kDrafts);
    sizes.context = kContext;
    GpuSetup setup(kTarget, sizes, {});
    for (std::int64_t i = 0; i < setup.plan().max_requests(); ++i) {
      const std::int32_t answer = 2 + kDrafts;
      submit(setup, some_tokens(i == 0 ? kContext - answer : 2, setup.config().vocab), answer,
             0.7f);
    }
    while (!setup.engine().idle()) ASSERT_TRUE(setup.engine().step().ok());
    EXPECT_GT(setup.engine().stats().drafts.all_drafted(), 0);
    EXPECT_EQ(setup.held_by_drafts(), 0);
    EXPECT_EQ(setup.tensors().growths(), 1);
    const std::int64_t allocated = cuda::fake::device_bytes() - before;
    std::printf("%lld bytes, %lld planned\n", static_cast<long long>(allocated),
                static_cast<long long>(setup.planned_bytes()));
    EXPECT_LE(allocated, setup.planned_bytes());
    EXPECT_GE(static_cast<double>(allocated), 0.95 * static_cast<double>(setup.planned_bytes()));
  }
  EXPECT_EQ(cuda::fake::device_bytes(), before);
}

// A pass of the draft model that fails on the device costs its drafts only, and the next drafts are
// right.
TEST(GpuDraftModel, AFailedPassCostsDraftsAlone) {
  GpuSetup setup(kTarget, sizes_of(kTarget, 1), {});
  submit(setup, some_tokens(3, setup.config().vocab), 10);
  std::int64_t without = 0;
  for (int step = 0; !setup.engine().idle(); ++step) {
    // In a step with drafts the first wait is for the draft model.
    const bool fails = step == 3 || step == 5;
    if (fails) cuda::fake::fail_next_wait(cudaErrorIllegalAddress);
    const auto report = setup.engine().step();
    ASSERT_TRUE(report.ok()) << report.error().message();
    if (fails) without += report->drafted == 0;
  }
  EXPECT_EQ(without, 2);
  EXPECT_GT(setup.engine().stats().drafts.all_drafted(), 1);
  EXPECT_EQ(setup.engine().stats().drafts.all_accepted(),
            setup.engine().stats().drafts.all_drafted());
}

}  // namespace
}  // namespace lathe
