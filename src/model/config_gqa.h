// Reads what the architectures with grouped-query attention share in config.json.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/config_reader.h"
#include "model/config_rope.h"

namespace lathe {

/// Heads, head_dim (hidden_size / num_attention_heads where it is absent), RoPE and the scale, for
/// all layers: config.all_layers().
void parse_gqa_dims(ConfigReader& json, ModelConfig& config, const RopeKeys& keys = {});

/// layer_types as flags: 1 for sliding_attention, 0 for full_attention. Empty where the key is
/// absent.
std::vector<std::uint8_t> parse_layer_types(ConfigReader& json, const ModelConfig& config);

/// Gives sliding_window to the layers that `sliding` names, [layers]; where that is some of them,
/// all_layers() becomes the groups "full" and "window", the first layer's first.
void set_windows(ConfigReader& json, ModelConfig& config, const std::vector<std::uint8_t>& sliding);

/// The dims, and windows as Qwen 2 and 3 have them: layer_types, or use_sliding_window,
/// sliding_window and max_window_layers.
void parse_gqa(ConfigReader& json, ModelConfig& config);

}  // namespace lathe
