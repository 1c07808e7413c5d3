// Shared by the tests of configurations.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config/config.h"

namespace lathe {

using Json = nlohmann::json;

inline ModelConfig parsed(const Json& j) {
  auto config = parse_model_config(j.dump());
  EXPECT_TRUE(config.ok()) << (config ? "" : config.error().message());
  return config ? *config : ModelConfig{};
}

/// "accepted", or the message.
inline std::string refusal(const Json& j) {
  const auto config = parse_model_config(j.dump());
  return config ? "accepted" : config.error().message();
}

// The keys of the published config.json files that affect the computation.
inline Json deepseek_v3() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"model_type", "deepseek_v3"},
          {"vocab_size", 129280},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 61},
          {"num_nextn_predict_layers", 1},
          {"num_attention_heads", 128},
          {"num_key_value_heads", 128},
          {"n_shared_experts", 1},
          {"n_routed_experts", 256},
          {"routed_scaling_factor", 2.5},
          {"kv_lora_rank", 512},
          {"q_lora_rank", 1536},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"qk_nope_head_dim", 128},
          {"topk_method", "noaux_tc"},
          {"scoring_func", "sigmoid"},
          {"n_group", 8},
          {"topk_group", 4},
          {"num_experts_per_tok", 8},
          {"moe_layer_freq", 1},
          {"first_k_dense_replace", 3},
          {"norm_topk_prob", true},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 163840},
          {"rms_norm_eps", 1e-6},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"rope_theta", 10000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 40},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0}}},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}}}};
}

inline Json glm() {
  Json j = deepseek_v3();
  j["architectures"] = {"GlmMoeDsaForCausalLM"};
  j["num_hidden_layers"] = 6;
  j["n_group"] = 1;
  j["topk_group"] = 1;
  j["index_n_heads"] = 32;
  j["index_head_dim"] = 128;
  j["index_topk"] = 2048;
  j.erase("quantization_config");
  return j;
}

inline Json qwen3() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"vocab_size", 151936},
          {"hidden_size", 1024},
          {"intermediate_size", 3072},
          {"num_hidden_layers", 28},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 40960},
          {"max_window_layers", 28},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"sliding_window", nullptr},
          {"use_sliding_window", false},
          {"tie_word_embeddings", true}};
}

// The keys of gemma-3-1b-it's config.json, in the older and the newer spelling.
inline Json gemma3() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"attention_bias", false},
          {"attn_logit_softcapping", nullptr},
          {"final_logit_softcapping", nullptr},
          {"head_dim", 256},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", 1152},
          {"intermediate_size", 6912},
          {"max_position_embeddings", 32768},
          {"model_type", "gemma3_text"},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 26},
          {"num_key_value_heads", 1},
          {"query_pre_attn_scalar", 144},
          {"rms_norm_eps", 1e-6},
          {"rope_local_base_freq", 10000},
          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
          {"rope_theta", 1000000},
          {"sliding_window", 512},
          {"sliding_window_pattern", 6},
          {"vocab_size", 262144}};
}

// The keys of gpt-oss-20b's config.json.
inline Json gpt_oss() {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"attention_bias", true},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2880},
          {"initial_context_length", 4096},
          {"intermediate_size", 2880},
          {"max_position_embeddings", 131072},
          {"num_attention_heads", 64},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 24},
          {"num_key_value_heads", 8},
          {"num_local_experts", 32},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 201088}};
}

inline Json without(Json j, std::initializer_list<const char*> keys) {
  for (const char* key : keys) j.erase(key);
  return j;
}

}  // namespace lathe
