// Models on several devices of the fake CUDA runtime against one.
#include <chrono>

#include "engine/test/gpu_ranks_checks.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe {
namespace {

std::string ranked_model(const std::string& name) {
  return std::string(LATHE_TEST_DATA) + "/../../models/" + name;
}

class GpuRanksFake : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { cuda::fake::set_devices(2); }
  void TearDown() override {
    static_cast<void>(cudaSetDevice(0));
    cuda::fake::shuffle_devices(0);
    cuda::fake::set_devices(1);
  }
  std::string model() const { return ranked_model(GetParam()); }
  GpuSetup::Sizes sizes() const {
    const bool v4 = model().ends_with("v4");
    return {.context = v4 ? 256 : 128, .cache_tokens = 1024, .plain_products = true};
  }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuRanksFake,
                         ::testing::Values("tiny-gqa", "tiny-v32", "tiny-v4"));

TEST_P(GpuRanksFake, TwoGiveWhatOneGives) {
  const std::vector<Prompt> prompts{{7, 3}, {12, 2}};
  expect_like_one_gpu(answers_of_ranks(model(), sizes(), {}, prompts, 2),
                      answers_of(model(), sizes(), {}, prompts));
}

TEST_P(GpuRanksFake, ReplayedStepsHaveTheBitsOfOthers) {
  cuda::fake::shuffle_devices(7);
  check_replays(model(), sizes(), {{5, 4}}, 2);
}

// A13. Two graphs, one a rank, and each rank's lists. Without the watchdog: where a step takes
// longer than `look_every`, it copies from the devices and waits for them.
TEST_P(GpuRanksFake, AReplayedStepNeitherAllocatesNorWaits) {
  EngineOptions options;
  options.overlap = false;
  GpuRanksOptions own;
  own.group.look_every = std::chrono::hours(24);
  GpuRanks setup(model(), sizes(), options, 2, own);
  Request r;
  r.prompt = some_tokens(5, setup.config().vocab);
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  r.sampling.max_tokens = 8;
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(setup.engine().step().ok());
  const cuda::fake::Counts before = cuda::fake::counts();
  ASSERT_TRUE(setup.engine().launch().ok());
  const cuda::fake::Counts after = cuda::fake::counts();
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 2);
  EXPECT_EQ(after.copies_in, before.copies_in + 2);
  EXPECT_EQ(after.copies_out, before.copies_out);
  ASSERT_TRUE(setup.engine().collect().ok());
  EXPECT_EQ(cuda::fake::counts().waits, before.waits + 2);
}

class GpuRanksModels : public GpuRanksFake {};
INSTANTIATE_TEST_SUITE_P(WithExperts, GpuRanksModels, ::testing::Values("tiny-v32", "tiny-v4"));

TEST_P(GpuRanksModels, DraftsChangeNoToken) {
  check_drafts_on_ranks(model(), sizes(), {{7, 5}}, 2);
}

using GpuRanksOfOneModel = GpuRanksFake;
INSTANTIATE_TEST_SUITE_P(Gqa, GpuRanksOfOneModel, ::testing::Values("tiny-gqa"));

// Sums of more than 32 rows are divided among four ranks.
TEST_P(GpuRanksOfOneModel, FourGiveWhatOneGives) {
  cuda::fake::set_devices(4);
  const std::vector<Prompt> prompts{{40, 2}};
  expect_like_one_gpu(answers_of_ranks(model(), sizes(), {}, prompts, 4),
                      answers_of(model(), sizes(), {}, prompts));
}

TEST_P(GpuRanksOfOneModel, ARankThatEndsIsNamed) { check_rank_that_ends(model(), sizes()); }
TEST_P(GpuRanksOfOneModel, ARankThatStallsIsNamed) {
  check_rank_that_stalls(model(), sizes(), 1e-3);
}

// As after a fault of a kernel: every step says so, and none hangs.
TEST_P(GpuRanksOfOneModel, ARanksDeviceThatFailsEndsAllSteps) {
  GpuRanks setup(model(), sizes(), {}, 2);
  cuda::fake::fail_next_wait(cudaErrorIllegalAddress);
  EXPECT_NE(failure_of(setup).find("cudaErrorOfTheFake"), std::string::npos);
}

}  // namespace
}  // namespace lathe
