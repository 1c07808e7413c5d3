// The supported architectures. An architecture only interprets its config.json: all share one
// forward pass (decoder.h), which reads the configuration.
#pragma once

#include <span>
#include <string_view>

#include "model/config/config.h"
#include "model/config/config_reader.h"

namespace lathe {

struct Architecture {
  std::string_view name;  // as in config.json's `architectures`
  /// Reads the architecture's own keys; errors stay in the reader. `config` already has the common
  /// fields (config.cc).
  void (*parse)(ConfigReader& json, ModelConfig& config);
  bool mxfp4 = false;      // quantisation of its checkpoints; false: DeepSeek's fp8
  double norm_eps = 1e-6;  // where rms_norm_eps is absent, as in transformers' class
  std::int32_t bos = -1;   // where bos_token_id is absent, as in that class; -1: none
  std::int32_t eos = -1;   // where eos_token_id is absent, as in that class; -1: none
};

/// In alphabetical order.
std::span<const Architecture> architectures();
/// Null for an unknown name.
const Architecture* find_architecture(std::string_view name);

void parse_axk1(ConfigReader& json, ModelConfig& config);
void parse_axk2(ConfigReader& json, ModelConfig& config);
void parse_bailing_hybrid(ConfigReader& json, ModelConfig& config);
void parse_deepseek_v2(ConfigReader& json, ModelConfig& config);
void parse_deepseek_v3(ConfigReader& json, ModelConfig& config);
void parse_deepseek_v32(ConfigReader& json, ModelConfig& config);
void parse_deepseek_v4(ConfigReader& json, ModelConfig& config);
void parse_exaone4(ConfigReader& json, ModelConfig& config);
void parse_gemma3(ConfigReader& json, ModelConfig& config);
void parse_gemma4(ConfigReader& json, ModelConfig& config);
void parse_glm4(ConfigReader& json, ModelConfig& config);
void parse_glm5_next(ConfigReader& json, ModelConfig& config);
void parse_glm4_moe(ConfigReader& json, ModelConfig& config);
void parse_glm4_moe_lite(ConfigReader& json, ModelConfig& config);
void parse_glm_moe_dsa(ConfigReader& json, ModelConfig& config);
void parse_gpt_oss(ConfigReader& json, ModelConfig& config);
void parse_granite(ConfigReader& json, ModelConfig& config);
void parse_hy_v4(ConfigReader& json, ModelConfig& config);
void parse_kimi_linear(ConfigReader& json, ModelConfig& config);
void parse_llama(ConfigReader& json, ModelConfig& config);
void parse_mimo(ConfigReader& json, ModelConfig& config);
void parse_mimo_v2_flash(ConfigReader& json, ModelConfig& config);
void parse_minicpm3(ConfigReader& json, ModelConfig& config);
void parse_minimax_m2(ConfigReader& json, ModelConfig& config);
void parse_ministral3(ConfigReader& json, ModelConfig& config);
void parse_mistral(ConfigReader& json, ModelConfig& config);
void parse_mistral4(ConfigReader& json, ModelConfig& config);
void parse_mixtral(ConfigReader& json, ModelConfig& config);
void parse_olmo2(ConfigReader& json, ModelConfig& config);
void parse_olmo3(ConfigReader& json, ModelConfig& config);
void parse_phi3(ConfigReader& json, ModelConfig& config);
void parse_qwen2(ConfigReader& json, ModelConfig& config);
void parse_qwen3(ConfigReader& json, ModelConfig& config);
void parse_qwen3_5(ConfigReader& json, ModelConfig& config);
void parse_qwen3_5_moe(ConfigReader& json, ModelConfig& config);
void parse_qwen3_moe(ConfigReader& json, ModelConfig& config);
void parse_qwen3_next(ConfigReader& json, ModelConfig& config);
void parse_qwen3_vl_moe(ConfigReader& json, ModelConfig& config);
void parse_sarvam_mla(ConfigReader& json, ModelConfig& config);
void parse_seed_oss(ConfigReader& json, ModelConfig& config);
void parse_smollm3(ConfigReader& json, ModelConfig& config);
void parse_youtu(ConfigReader& json, ModelConfig& config);

}  // namespace lathe
