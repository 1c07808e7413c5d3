// Whole checkpoints on the CUDA backend, with emulated kernels, against the CPU.
#include "model/generated_checkpoint.h"
#include "model/gpu_model_checks.h"

namespace lathe {
namespace {

std::string shipped(const std::string& name) {
  return std::string(LATHE_TEST_DATA) + "/../../models/" + name;
}

TEST(GpuModel, TinyV32) {
  check_gpu_model({.directory = shipped("tiny-v32"), .layout = "mla_bf16", .plain_products = true});
}

TEST(GpuModel, TinyV32OnFp8PagesWithTensorCores) {
  check_gpu_model(
      {.directory = shipped("tiny-v32"), .layout = "mla_fp8_block", .tokens = 5, .decoded = 1});
}

// Both phases first decode selected keys into compact rows.
TEST(GpuModel, TinyV32GathersFromFp8Pages) {
  check_gpu_model({.directory = shipped("tiny-v32"),
                   .layout = "mla_fp8_block",
                   .kind = "gather",
                   .plain_products = true});
}

TEST(GpuModel, TinyGqa) {
  check_gpu_model({.directory = shipped("tiny-gqa"), .layout = "gqa_bf16", .plain_products = true});
}

// Layers of every kind; the prompt completes an entry of 128 tokens.
TEST(GpuModel, DeepseekV4) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_wide"));
  check_gpu_model({.directory = checkpoint.dir(),
                   .layout = "mla_bf16",
                   .tokens = 135,
                   .chunk = 50,
                   .decoded = 6,
                   .plain_products = true});
}

TEST(GpuModel, DeepseekV4OnFp8PagesWithTensorCores) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_wide"));
  check_gpu_model({.directory = checkpoint.dir(), .layout = "v4_fp8", .tokens = 45, .decoded = 5});
}

}  // namespace
}  // namespace lathe
