// Reads the keys of config.json about delta-rule layers.
#pragma once

#include "model/config/config.h"
#include "model/config/config_reader.h"

namespace lathe {

/// Moves layers from all_layers() to config.delta. Refuses a model without other layers.
/// linear: [layers] 1: a delta rule.
void set_delta_layers(ConfigReader& json, ModelConfig& config,
                      const std::vector<std::uint8_t>& linear);

/// Reads layer_types (linear_attention or full_attention), or full_attention_interval, and the
/// linear_* keys of Qwen 3 Next and 3.5: a gated delta net.
void parse_delta_net(ConfigReader& json, ModelConfig& config);

/// Reads linear_attn_config, or layer_types and the linear_* keys of transformers' class: Kimi
/// delta attention.
void parse_kimi_delta(ConfigReader& json, ModelConfig& config);

/// Reads layer_types (linear_attention, indexed_attention or full_attention; else every fourth
/// layer has attention), and linear_attn_config or the linear_* keys of transformers' class:
/// GLM 5.3 Flash's Kimi delta attention.
void parse_glm_delta(ConfigReader& json, ModelConfig& config);

/// Reads layer_types, or layer_group_size (the last layer of a group has attention), and the heads
/// and the bound of Ling 3's Kimi delta attention.
void parse_bailing_delta(ConfigReader& json, ModelConfig& config);

}  // namespace lathe
