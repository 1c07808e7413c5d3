// Whole checkpoints on the CUDA backend, with emulated kernels, against the CPU.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/test_scale.h"
#include "model/test/dummy_glm53_test_util.h"
#include "model/test/dummy_llama4_test_util.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/gpu_model_checks.h"

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

// No row has more keys than it may choose.
TEST(GpuModel, ExpandsTheKeysOfPromptsThatChooseNone) {
  const auto folder = std::filesystem::path(testing::TempDir()) /
                      ("lathe_expanded_sparse_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
    "vocab_size": 97, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1,
    "first_k_dense_replace": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "index_n_heads": 4, "index_head_dim": 128, "index_topk": 256,
    "max_position_embeddings": 4096, "rope_theta": 10000, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false,
    "moe_intermediate_size": 64, "n_routed_experts": 2, "num_experts_per_tok": 1,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 1.0,
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"})";
  check_gpu_model({.directory = folder.string(),
                   .layout = "mla_bf16",
                   .expands = true,
                   .tokens = 150,
                   .dummy = true,
                   .plain_products = true});
  std::filesystem::remove_all(folder);
}

// Latents of 256 with 64 and 32 dims of RoPE; queries that grow with their position.
TEST(GpuModel, NarrowLatents) {
  const auto folder = std::filesystem::path(testing::TempDir()) /
                      ("lathe_narrow_latents_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (const char* keys :
       {R"("architectures": ["Mistral4ForCausalLM"], "qk_rope_head_dim": 64, "n_routed_experts": 4,
           "num_experts_per_tok": 2, "moe_intermediate_size": 128, "rope_parameters": {
           "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
           "mscale_all_dim": 1.0, "original_max_position_embeddings": 8,
           "llama_4_scaling_beta": 0.5})",
        R"("architectures": ["MiniCPM3ForCausalLM"], "qk_rope_head_dim": 32)"}) {
    SCOPED_TRACE(keys);
    std::ofstream(folder / "config.json") << R"({
      "vocab_size": 97, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 256,
      "qk_nope_head_dim": 64, "v_head_dim": 64, "max_position_embeddings": 512,
      "hidden_act": "silu", )" << keys << "}";
    // Row 18 amplifies the rounding of activations beyond the bound.
    check_gpu_model({.directory = folder.string(),
                     .layout = "mla_bf16",
                     .tokens = 17,
                     .dummy = true,
                     .plain_products = true});
  }
  std::filesystem::remove_all(folder);
}

// Sinks, gates and streams of Hy4; gates of A.X-K2, and its latents of 128 + 32.
TEST(GpuModel, SparseLatentHybrids) {
  const auto folder = std::filesystem::path(testing::TempDir()) /
                      ("lathe_sparse_hybrids_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (const char* keys : {R"("architectures": ["HYV4ForCausalLM"], "rms_norm_eps": 0.03,
           "kv_lora_rank": 512, "qk_rope_head_dim": 64, "indexer_types": ["full", "shared"])",
                           R"("architectures": ["AXK2ForCausalLM"], "kv_lora_rank": 128,
           "qk_rope_head_dim": 32)"}) {
    SCOPED_TRACE(keys);
    std::ofstream(folder / "config.json") << R"({
      "vocab_size": 97, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64,
      "qk_nope_head_dim": 64, "v_head_dim": 64, "max_position_embeddings": 512,
      "index_n_heads": 4, "index_head_dim": 128, "index_topk": 16, "n_routed_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 64, "hidden_act": "silu", )"
                                          << keys << "}";
    check_gpu_model({.directory = folder.string(),
                     .layout = "mla_bf16",
                     .dummy = true,
                     .plain_products = true});
  }
  std::filesystem::remove_all(folder);
}

// Prompts in one chunk, and in chunks that begin and end within the tokens of an index key. The
// delta rule's norms of single heads enlarge what bf16 rounds.
TEST(GpuModel, IndexKeysOfSeveralTokens) {
  const DummyGlm53 model;
  for (const auto& [layout, chunk] :
       {std::pair{"mla_bf16", 0}, {"mla_bf16", 13}, {"mla_fp8_block", 13}}) {
    check_gpu_model({.directory = model.dir(),
                     .layout = layout,
                     .tokens = 42,
                     .chunk = chunk,
                     .decoded = 8,
                     .dummy = true,
                     .plain_products = true,
                     .bound = kGpuBoundFp8Cache});
  }
}

// Prompts cut at random, and decoded rows that enter another chunk.
TEST(GpuModel, Llama4) {
  const DummyLlama4 model;
  for (const bool plain : {false, true}) {
    const std::uint32_t seed = test_seed(plain ? 5 : 6);
    std::mt19937 rng(seed);
    GpuModelCase c{.directory = model.dir(),
                   .layout = "gqa_bf16",
                   .tokens = DummyLlama4::kChunk * 2 + static_cast<int>(rng() % 4),
                   .chunk = 20 + static_cast<int>(rng() % 80),
                   .decoded = 5,
                   .dummy = true,
                   .plain_products = plain};
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(c.tokens) +
                 " tokens in chunks of " + std::to_string(c.chunk));
    check_gpu_model(c);
  }
}

TEST(GpuModel, TinyGqa) {
  check_gpu_model({.directory = shipped("tiny-gqa"), .layout = "gqa_bf16", .plain_products = true});
}

// A folder with a small grouped-query configuration and further keys, for random weights.
class DummyGqa {
 public:
  explicit DummyGqa(const std::string& keys, const std::string& activation = "silu",
                    int head_dim = 64)
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("lathe_dummy_gqa_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({
      "vocab_size": 97, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 512, "torch_dtype": "bfloat16", "head_dim": )"
        << head_dim << R"(, "hidden_act": ")" << activation << "\", " << keys << "}";
  }
  ~DummyGqa() { std::filesystem::remove_all(folder_); }

  void check() const {
    check_gpu_model({.directory = folder_.string(),
                     .layout = "gqa_bf16",
                     .dummy = true,
                     .plain_products = true});
  }

 private:
  std::filesystem::path folder_;
};

TEST(GpuModel, HalfOfEachHeadRotates) {
  DummyGqa(R"("architectures": ["Glm4MoeForCausalLM"], "partial_rotary_factor": 0.5,
      "use_qk_norm": true, "first_k_dense_replace": 2, "num_nextn_predict_layers": 0)")
      .check();
}

// The context is longer than the original one, and so is the prompt.
TEST(GpuModel, QueriesGrowWithTheirPosition) {
  DummyGqa(R"("architectures": ["Ministral3ForCausalLM"], "rope_parameters": {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5})")
      .check();
}

// Norms over all heads, names of experts, norms after parts alone, layers without RoPE, fused
// tensors, scalars.
TEST(GpuModel, PartsOfGroupedQueryFamilies) {
  for (const char* keys :
       {R"("architectures": ["MiniMaxM2ForCausalLM"], "rotary_dim": 32, "num_local_experts": 4,
           "num_experts_per_tok": 2)",
        R"("architectures": ["Exaone4ForCausalLM"], "sliding_window": 16,
           "layer_types": ["sliding_attention", "full_attention"])",
        R"("architectures": ["Olmo2ForCausalLM"])", R"("architectures": ["Glm4ForCausalLM"])",
        R"("architectures": ["Phi3ForCausalLM"])",
        R"("architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0])",
        R"("architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0,
           "attention_multiplier": 0.1, "residual_multiplier": 0.7, "logits_scaling": 2.0)"}) {
    SCOPED_TRACE(keys);
    DummyGqa(keys).check();
  }
}

// Heads of 512 in the layer without a window, values that are its keys, a window of other heads; a
// dense part next to experts. Scores of normed random queries and keys are about 20, as they have
// no scale, and softmax then enlarges what bf16 rounds. The large epsilon makes them smaller.
TEST(GpuModel, Gemma4) {
  for (const char* experts : {R"("enable_moe_block": false)",
                              R"("enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
                                 "moe_intermediate_size": 128)"}) {
    SCOPED_TRACE(experts);
    DummyGqa(std::string(R"("architectures": ["Gemma4ForCausalLM"], "global_head_dim": 512,
             "attention_k_eq_v": true, "num_global_key_value_heads": 1, "sliding_window": 16,
                          "hidden_size_per_layer_input": 0, "final_logit_softcapping": 2.0,
             "rms_norm_eps": 1.0, "layer_types": ["sliding_attention", "full_attention"], )") +
                 experts,
             "gelu_pytorch_tanh")
        .check();
  }
  // The last layer reads the other's keys, and each has an input of its own.
  DummyGqa(R"("architectures": ["Gemma4ForCausalLM"], "global_head_dim": 512,
           "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 97,
           "num_kv_shared_layers": 1, "use_double_wide_mlp": true, "rms_norm_eps": 1.0,
           "layer_types": ["full_attention", "full_attention"])",
           "gelu_pytorch_tanh")
      .check();
}

// Keys of 192 with values of 128, which are scaled; a window with sinks and more key heads; a third
// of each head rotates.
TEST(GpuModel, MiMoV2Flash) {
  DummyGqa(R"("architectures": ["MiMoV2FlashForCausalLM"], "v_head_dim": 128,
           "swa_num_key_value_heads": 4, "sliding_window": 16,
           "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1],
           "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64)",
           "silu", 192)
      .check();
}

// Prompts long enough for the chunked form, then decoded rows; heads of 128 and narrower ones.
// Projections by key heads, and a shared expert with a gate.
TEST(GpuModel, DeltaRuleNextToAttentionWithAGate) {
  for (const char* keys :
       {R"("architectures": ["Qwen3_5ForCausalLM"], "full_attention_interval": 2,
           "linear_num_key_heads": 1, "linear_num_value_heads": 2, "partial_rotary_factor": 0.25)",
        R"("architectures": ["Qwen3NextForCausalLM"], "full_attention_interval": 2,
           "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
           "linear_value_head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
           "partial_rotary_factor": 0.25)"}) {
    SCOPED_TRACE(keys);
    DummyGqa(keys).check();
  }
}

// Random weights have the same bits as on the CPU, with codes in another order.
TEST(GpuModel, RandomPackedWeights) {
  for (const char* quantization :
       {R"("quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
           {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}})",
        R"("quant_method": "awq", "bits": 4, "group_size": 128)",
        R"("quant_method": "modelopt", "quant_algo": "NVFP4")"}) {
    DummyGqa(std::string(R"("architectures": ["Qwen3ForCausalLM"], "quantization_config": {)") +
             quantization + "}")
        .check();
  }
}

// Every packed format of weights, and fp8 with scales of rows; then the plain GEMM's formulas. The
// prompt leaves out tokens with rows that amplify the rounding of activations beyond the bound.
TEST(GpuModel, PackedFormats) {
  for (const char* name : {"formats_fp8", "formats_int4", "formats_fp4"}) {
    const GeneratedCheckpoint checkpoint(fixture_dir(name));
    GpuModelCase c{.directory = checkpoint.dir(),
                   .layout = "gqa_bf16",
                   .decoded = 1,
                   .prompt = {5, 19, 33, 47, 7}};
    check_gpu_model(c);
    c.plain_products = true;
    check_gpu_model(c);
  }
}

TEST(GpuModel, PackedExperts) {
  const GeneratedCheckpoint checkpoint(fixture_dir("formats_experts"));
  check_gpu_model({.directory = checkpoint.dir(), .layout = "mla_bf16", .tokens = 5, .decoded = 1});
}

// Has layers of every kind; the prompt completes an entry of 128 tokens.
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
