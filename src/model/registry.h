// The architectures that this build runs. An architecture only says what its config.json means: all
// share one forward pass (decoder.h), which reads the configuration.
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"
#include "model/config_reader.h"

namespace lathe {

struct Architecture {
  std::string_view name;  // as config.json's `architectures` has it
  /// Fills what the architecture's own keys say; errors stay in the reader. `config` has the fields
  /// that all architectures share (config.cc).
  void (*parse)(ConfigReader& json, ModelConfig& config);
  bool mxfp4 = false;  // the quantisation of its checkpoints; DeepSeek's fp8 otherwise
};

/// In alphabetical order.
std::span<const Architecture> architectures();
/// Null for an unknown name.
const Architecture* find_architecture(std::string_view name);

void parse_deepseek_v3(ConfigReader& json, ModelConfig& config);
void parse_deepseek_v32(ConfigReader& json, ModelConfig& config);
void parse_deepseek_v4(ConfigReader& json, ModelConfig& config);
void parse_gemma3(ConfigReader& json, ModelConfig& config);
void parse_glm_moe_dsa(ConfigReader& json, ModelConfig& config);
void parse_gpt_oss(ConfigReader& json, ModelConfig& config);
void parse_llama(ConfigReader& json, ModelConfig& config);
void parse_mistral(ConfigReader& json, ModelConfig& config);
void parse_qwen2(ConfigReader& json, ModelConfig& config);
void parse_qwen3(ConfigReader& json, ModelConfig& config);
void parse_qwen3_moe(ConfigReader& json, ModelConfig& config);

}  // namespace lathe
