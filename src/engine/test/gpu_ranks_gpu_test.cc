// The shipped models on two GPUs against one; their folder is the program's argument. With one GPU
// everything is skipped.
#include <gtest/gtest.h>

#include "engine/test/gpu_ranks_checks.h"
#include "kernels/cuda/common/test/gpu_test_util.h"

namespace lathe {
namespace {

std::string models = std::string(LATHE_TEST_DATA) + "/../../models";
const std::vector<Prompt> kPrompts = {{7, 24}, {3, 20, 0.9f}, {12, 24}, {60, 16}};

class GpuRanksOnGpus : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, GpuRanksOnGpus,
                         ::testing::Values("tiny-gqa", "tiny-v32", "tiny-v4"));

TEST_P(GpuRanksOnGpus, TwoGiveWhatOneGives) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 2) GTEST_SKIP() << "one GPU";
  check_ranks(models + "/" + GetParam(), {.context = 256, .cache_tokens = 4096}, kPrompts, 2);
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc > 1 && argv[argc - 1][0] != '-') lathe::models = argv[--argc];
  return lathe::cuda::gpu_test_main(argc, argv);
}
