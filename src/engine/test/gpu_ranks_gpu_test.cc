// The shipped models on two GPUs against one; their folder is the program's argument. With one GPU
// everything is skipped.
#include <gtest/gtest.h>

#include "engine/test/gpu_ranks_checks.h"
#include "kernels/cuda/common/test/gpu_test_util.h"

namespace lathe {
namespace {

std::string models = std::string(LATHE_TEST_DATA) + "/../../models";
const std::vector<Prompt> kPrompts = {{7, 24}, {3, 20, 0.9f}, {12, 24}, {60, 16}};

constexpr GpuSetup::Sizes kGpuSizes = {.context = 256, .cache_tokens = 4096};

class GpuRanksOnGpus : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    if (devices < 2) GTEST_SKIP() << "one GPU";
  }
  std::string model() const { return models + "/" + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuRanksOnGpus,
                         ::testing::Values("tiny-gqa", "tiny-v32", "tiny-v4"));

TEST_P(GpuRanksOnGpus, TwoGiveWhatOneGives) { check_ranks(model(), kGpuSizes, kPrompts, 2); }

TEST_P(GpuRanksOnGpus, ReplayedStepsHaveTheBitsOfOthers) {
  check_replays(model(), kGpuSizes, {{7, 24}, {12, 24}, {60, 16}}, 2);
}

// Sums of more than 32 rows are divided among four ranks. tiny-v4 has two groups of heads.
TEST_P(GpuRanksOnGpus, FourGiveWhatOneGives) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 4 || model().ends_with("v4")) GTEST_SKIP() << "fewer GPUs or heads";
  check_ranks(model(), kGpuSizes, kPrompts, 4);
  check_replays(model(), kGpuSizes, {{40, 8}, {60, 8}}, 4);
}

// The shipped models that have a draft layer.
TEST_P(GpuRanksOnGpus, DraftsChangeNoToken) {
  if (model().ends_with("gqa")) GTEST_SKIP() << "no draft layer";
  check_drafts_on_ranks(model(), kGpuSizes, {{7, 24}, {12, 24}}, 2);
}

TEST_P(GpuRanksOnGpus, ARankThatEndsIsNamed) { check_rank_that_ends(model(), kGpuSizes); }
TEST_P(GpuRanksOnGpus, ARankThatStallsIsNamed) { check_rank_that_stalls(model(), kGpuSizes, 1); }

TEST_P(GpuRanksOnGpus, StartAndStopFiftyTimes) {
  for (int i = 0; i < 50; ++i) {
    const Answers run = answers_of_ranks(model(), kGpuSizes, {}, {{5, 2}}, 2);
    ASSERT_EQ(run.tokens.size(), 1u) << i;
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc > 1 && argv[argc - 1][0] != '-') lathe::models = argv[--argc];
  return lathe::cuda::gpu_test_main(argc, argv);
}
