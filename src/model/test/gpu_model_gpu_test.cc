// The shipped checkpoints on a GPU against the CPU; the program's argument is their folder. With
// LATHE_CHECKPOINT=DIR a checkpoint of tools/check_wide_models.py: on the same tokens the CPU
// against transformers, and the GPU against the CPU with the GPU's selections.
#include <fmt/format.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/files/gzip.h"
#include "io/tokenizer/tokenizer.h"
#include "kernels/cuda/common/test/gpu_test_util.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/gpu_model_checks.h"
#include "model/test/wide_model_checks.h"

namespace lathe {
namespace {

std::string models = std::string(LATHE_TEST_DATA) + "/../../models";

class GpuModel : public ::testing::TestWithParam<const char*> {};

// The task's first item with at least `least` tokens, prompt and answer. Only the answer's rows, on
// which the checkpoints were trained, are compared one by one: elsewhere bf16 activations alone
// move single rows of such small models by more than the bound (bench/notes/gpu-models).
GpuModelCase case_of(const std::string& model, const std::string& task, std::size_t least) {
  const auto tokenizer = Tokenizer::load(models + "/tiny-v32");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const auto items = read_gzip_file(models + "/tasks/" + task + ".jsonl.gz");
  EXPECT_TRUE(items.ok()) << items.error().message();
  std::istringstream lines(*items);
  for (std::string line; std::getline(lines, line);) {
    const auto item = nlohmann::json::parse(line);
    const auto text = fmt::format("<bos><user>{}<assistant>{}", item["prompt"].get<std::string>(),
                                  item["response"].get<std::string>());
    std::vector<std::int32_t> tokens = *tokenizer->encode(text);
    if (tokens.size() < least) continue;
    const auto answer = tokenizer->encode(text.substr(0, text.find("<assistant>")))->size();
    return {.directory = models + "/" + model,
            .layout = "gqa_bf16",
            .decoded = 20,
            .prompt = tokens,
            .first = answer};
  }
  ADD_FAILURE() << "no item of " << least << " tokens";
  return {};
}

TEST_P(GpuModel, SparseLatent) {
  for (GpuModelCase c : {case_of("tiny-v32", "copy", 200), case_of("tiny-v32", "chains", 100)}) {
    c.layout = GetParam();
    check_gpu_model(c);
    c.chunk = 33;
    check_gpu_model(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuModel,
                         ::testing::Values("mla_bf16", "mla_fp8_block", "mla_fp8"));

TEST(GpuModelGroupedQuery, TinyGqa) {
  for (const GpuModelCase& c :
       {case_of("tiny-gqa", "copy", 200), case_of("tiny-gqa", "chains", 100)}) {
    check_gpu_model(c);
  }
}

// Random weights, so that every layer affects the logits; the keys include entries of 128 tokens.
TEST(GpuModelCompressed, DeepseekV4) {
  const GeneratedCheckpoint checkpoint(models + "/../tests/data/models/deepseek_v4_wide");
  for (const char* layout : {"mla_bf16", "v4_fp8"}) {
    GpuModelCase c{.directory = checkpoint.dir(), .layout = layout, .tokens = 300, .decoded = 20};
    check_gpu_model(c);
    c.chunk = 33;
    check_gpu_model(c);
  }
}

// Two or three layers of published widths, with random weights and few experts. Prompts are longer
// than what a row selects, or than a window.
void check_widths(const std::string& layout, const std::string& keys, double bound = 0) {
  SCOPED_TRACE(keys);
  const auto folder =
      std::filesystem::path(testing::TempDir()) / ("lathe_widths_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"vocab_size": 997, "hidden_act": "silu",
      "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "num_experts_per_tok": 2, )"
                                        << keys << "}";
  for (const std::int64_t chunk : {0, 47}) {
    check_gpu_model({.directory = folder.string(),
                     .layout = layout,
                     .tokens = 300,
                     .chunk = chunk,
                     .decoded = 8,
                     .dummy = true,
                     .threads = 16,
                     .bound = bound});
  }
  std::filesystem::remove_all(folder);
}

TEST(GpuModelPublishedWidths, AXK2) {
  check_widths("mla_bf16", R"("architectures": ["AXK2ForCausalLM"], "hidden_size": 2048,
      "intermediate_size": 5120, "num_hidden_layers": 2, "num_attention_heads": 32,
      "num_key_value_heads": 32, "q_lora_rank": 384, "kv_lora_rank": 128, "qk_rope_head_dim": 32,
      "qk_nope_head_dim": 64, "v_head_dim": 64, "index_n_heads": 16, "index_head_dim": 128,
      "index_topk": 96, "n_routed_experts": 8, "moe_intermediate_size": 512)");
}

TEST(GpuModelPublishedWidths, Glm53Flash) {
  for (const char* layout : {"mla_bf16", "mla_fp8_block"}) {
    check_widths(layout, R"("architectures": ["Glm5NextForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 12288, "num_hidden_layers": 2, "num_attention_heads": 64,
        "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_rope_head_dim": 0, "qk_nope_head_dim": 256, "v_head_dim": 256, "index_n_heads": 32,
        "index_head_dim": 128, "index_topk": 96, "index_kpool": 16, "n_routed_experts": 8,
        "moe_intermediate_size": 2048, "layer_types": ["linear_attention", "indexed_attention"],
        "mlp_layer_types": ["dense", "sparse"])",
                 kGpuBoundDelta);
  }
}

// Scout's widths. Prompts, cut or not, and decoded rows have keys of several chunks. In e4m3 some 4
// % of a small model's values become the next code where activations are bf16.
TEST(GpuModelPublishedWidths, Llama4) {
  for (const auto& [layout, bound] : {std::pair{"gqa_bf16", kGpuBound}, {"gqa_fp8", 6e-2}}) {
    check_widths(layout, R"("architectures": ["Llama4ForCausalLM"], "hidden_size": 5120,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 2,
        "no_rope_layers": [1, 0], "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "attention_chunk_size": 64, "num_local_experts": 16,
        "interleave_moe_layer_step": 1, "floor_scale": 50, "attn_scale": 0.3)",
                 bound);
  }
}

TEST(GpuModelPublishedWidths, MiMoV2Flash) {
  for (const char* layout : {"gqa_bf16", "gqa_fp8"}) {
    check_widths(layout, R"("architectures": ["MiMoV2FlashForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 16384, "num_hidden_layers": 3, "num_attention_heads": 64,
        "num_key_value_heads": 4, "swa_num_key_value_heads": 8, "head_dim": 192,
        "v_head_dim": 128, "sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1], "n_routed_experts": 8, "moe_intermediate_size": 2048)");
  }
}

TEST(WideModel, CpuAsTransformers) { check_given_checkpoint(/*threads=*/16); }

TEST(WideModel, GpuAsTheCpu) {
  const std::string directory = given_checkpoint();
  if (directory.empty()) GTEST_SKIP() << "no LATHE_CHECKPOINT";
  const auto config = load_model_config(directory);
  ASSERT_TRUE(config.ok()) << config.error().message();
  check_gpu_model({.directory = directory,
                   .layout = config->is_mla() ? "mla_bf16" : "gqa_bf16",
                   .decoded = 8,
                   .threads = 16,
                   .prompt = Reference::in_dir(directory).prompt(kWidePrompt).tokens,
                   .bound = config->delta.layers.empty() ? 0 : kGpuBoundDelta});
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') lathe::models = argv[1];
  return lathe::cuda::gpu_test_main(argc, argv);
}
