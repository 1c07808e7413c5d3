// Whole models on a GPU against the CPU, with random weights: the folder of config.json files is
// the program's argument.
#include "kernels/cuda/common/gpu_test_util.h"
#include "model/gpu_model_checks.h"

namespace lathe {
namespace {

std::string configs = ".";

class GpuModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuModel, SparseLatent) {
  const std::string model = configs + "/tiny-v32";
  check_gpu_model(
      {.directory = model, .layout = GetParam(), .tokens = 300, .decoded = 20, .dummy = true});
  check_gpu_model({.directory = model,
                   .layout = GetParam(),
                   .tokens = 200,
                   .chunk = 33,
                   .decoded = 5,
                   .dummy = true});
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuModel,
                         ::testing::Values("mla_bf16", "mla_fp8_block", "mla_fp8"));

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') lathe::configs = argv[1];
  return lathe::cuda::gpu_test_main(argc, argv);
}
