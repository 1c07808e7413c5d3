// The shipped checkpoints on a GPU against the CPU; the folder that holds them is the program's
// argument.
#include "kernels/cuda/common/gpu_test_util.h"
#include "model/gpu_model_checks.h"

namespace lathe {
namespace {

std::string models = std::string(LATHE_TEST_DATA) + "/../../models";

class GpuModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuModel, SparseLatent) {
  const std::string model = models + "/tiny-v32";
  check_gpu_model({.directory = model, .layout = GetParam(), .tokens = 300, .decoded = 20});
  check_gpu_model(
      {.directory = model, .layout = GetParam(), .tokens = 200, .chunk = 33, .decoded = 5});
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuModel,
                         ::testing::Values("mla_bf16", "mla_fp8_block", "mla_fp8"));

TEST(GpuModelGroupedQuery, TinyGqa) {
  check_gpu_model(
      {.directory = models + "/tiny-gqa", .layout = "gqa_bf16", .tokens = 300, .decoded = 20});
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') lathe::models = argv[1];
  return lathe::cuda::gpu_test_main(argc, argv);
}
