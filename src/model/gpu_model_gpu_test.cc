// The shipped checkpoints on a GPU against the CPU; the folder that holds them is the program's
// argument. With --checkpoint=DIR one of tools/check_wide_models.py, against transformers too.
#include "kernels/cuda/common/gpu_test_util.h"
#include "model/gpu_model_checks.h"

namespace lathe {
namespace {

std::string checkpoint;
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

TEST(GivenCheckpoint, AsTransformersAndTheCpu) {
  if (checkpoint.empty()) GTEST_SKIP() << "no --checkpoint";
  const auto config = load_model_config(checkpoint);
  ASSERT_TRUE(config.ok()) << config.error().message();
  const ReferencePrompt prompt = Reference::in_dir(checkpoint).prompt(300);
  check_gpu_model({.directory = checkpoint,
                   .layout = config->latent() ? "mla_bf16" : "gqa_bf16",
                   .tokens = 300,
                   .decoded = 8,
                   .threads = 16,
                   .reference = &prompt});
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    constexpr std::string_view kFlag = "--checkpoint=";
    const std::string_view arg = argv[i];
    if (arg.starts_with(kFlag)) lathe::checkpoint = arg.substr(kFlag.size());
  }
  if (argc > 1 && argv[1][0] != '-') lathe::models = argv[1];
  return lathe::cuda::gpu_test_main(argc, argv);
}
