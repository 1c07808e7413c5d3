// The engine on the CUDA backend, emulated: recorded steps against steps that are not, and what a
// step costs the host.
#include "engine/gpu_engine_test_util.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe {
namespace {

const std::string kModel = std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32";
constexpr GpuSetup::Sizes kSizes = {.context = 128, .plain_products = true};
const std::vector<Prompt> kPrompts = {{7, 6}, {3, 6}, {12, 6}};

TEST(GpuEngine, RecordedStepsGiveWhatOthersGive) {
  const std::int64_t before = cuda::fake::counts().graph_launches;
  const Answers recorded = answers_of(kModel, kSizes, {}, kPrompts);
  EXPECT_GT(cuda::fake::counts().graph_launches, before);
  EngineOptions eager;
  eager.debug_nan = true;  // its steps are neither padded nor recorded
  const std::int64_t between = cuda::fake::counts().graph_launches;
  const Answers plain = answers_of(kModel, kSizes, eager, kPrompts);
  EXPECT_EQ(cuda::fake::counts().graph_launches, between);
  ASSERT_EQ(recorded.tokens.size(), 3u);
  EXPECT_EQ(recorded.tokens, plain.tokens);
  for (const auto& [id, rows] : plain.logits) {
    const Logits& others = recorded.logits.at(id);
    ASSERT_EQ(rows.size(), others.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LT(relative_error(others[i], rows[i]), 5e-3) << id << ", " << i;
    }
  }
}

TEST(GpuEngine, AStepInFlightNeitherAllocatesNorWaits) {
  GpuSetup setup(kModel, kSizes, {});
  Request r;
  r.prompt = some_tokens(5, setup.config().vocab);
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  r.sampling.max_tokens = 6;
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(setup.engine().step().ok());
  const cuda::fake::Counts before = cuda::fake::counts();
  ASSERT_TRUE(setup.engine().launch().ok());
  const cuda::fake::Counts after = cuda::fake::counts();
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  EXPECT_EQ(after.copies_in, before.copies_in + 2);  // the step, and what is drawn from it
  EXPECT_EQ(after.copies_out, before.copies_out + 1);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 1);
  ASSERT_TRUE(setup.engine().collect().ok());
  EXPECT_EQ(cuda::fake::counts().waits, before.waits + 1);
}

// The largest steps that the plan allows: a whole chunk, then every request decodes.
TEST(GpuEngine, AllocatesWhatThePlanNames) {
  const std::int64_t before = cuda::fake::device_bytes();
  constexpr std::int64_t kContext = 64;
  GpuSetup setup(kModel, {.context = kContext, .plain_products = true}, {});
  const std::int64_t at_start = cuda::fake::device_bytes() - before;
  for (std::int64_t i = 0; i < setup.plan().max_requests(); ++i) {
    Request r;
    r.prompt = some_tokens(i == 0 ? kContext - 3 : 2, setup.config().vocab);
    r.sampling.temperature = 0.7f;
    r.sampling.logprobs = 5;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = 3;
    ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  }
  while (!setup.engine().idle()) ASSERT_TRUE(setup.engine().step().ok());
  EXPECT_EQ(setup.tensors().growths(), 1);
  const std::int64_t allocated = cuda::fake::device_bytes() - before;
  std::printf("%lld bytes at start, %lld at the end, %lld planned\n",
              static_cast<long long>(at_start), static_cast<long long>(allocated),
              static_cast<long long>(setup.planned_bytes()));
  EXPECT_LE(allocated, setup.planned_bytes());
  EXPECT_GE(static_cast<double>(allocated), 0.95 * static_cast<double>(setup.planned_bytes()));
  // Tables and logits, which the first step makes, and schedules.
  const auto late = [&](BudgetKind kind) { return setup.plan().budget(kind)->bytes; };
  EXPECT_LE(allocated - at_start, late(BudgetKind::logits) + late(BudgetKind::rope_tables) +
                                      late(BudgetKind::schedules) / 2);
}

TEST(GpuEngine, AnErrorOfTheDeviceEndsTheStepAndNamesIt) {
  GpuSetup setup(kModel, kSizes, {});
  Request r;
  r.prompt = some_tokens(5, setup.config().vocab);
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  ASSERT_TRUE(setup.engine().launch().ok());
  cuda::fake::fail_next_wait(cudaErrorIllegalAddress);
  const auto report = setup.engine().collect();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::device);
}

}  // namespace
}  // namespace lathe
