// What the architectures with grouped-query attention share in config.json.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"

namespace lathe {

/// Heads, head_dim (hidden_size / num_attention_heads where it is absent), RoPE, the scale and the
/// sliding window.
void parse_gqa(ConfigReader& json, ModelConfig& config);

}  // namespace lathe
