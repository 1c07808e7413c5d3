// SmolLM3: Llama's layers, every fourth without RoPE.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_smollm3(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 4}, {.default_theta = 2e6});
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  json.only_false("mlp_bias");
  config.tied_embeddings = json.flag("tie_word_embeddings", true);
  json.only_false("use_sliding_window");
  for (const std::uint8_t sliding : parse_layer_types(json, config)) {
    if (sliding != 0) json.refuse("layer_types", "full_attention", "sliding_attention");
  }
  const std::vector<std::uint8_t> turns = parse_rope_layers(json, config);
  split_layers(config, turns, {"no rope", "rope"});
  for (LayerGroupConfig& group : config.groups) {
    if (turns[static_cast<std::size_t>(group.layers.front())] == 0)
      group.rope = no_rope(group.rope);
  }
}

}  // namespace lathe
