// SmolLM3: Llama's layers, every fourth without RoPE.
#include <fmt/format.h>

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
  std::vector<std::uint8_t> turns;  // [layers] 1: has RoPE
  for (const std::int32_t has : json.integers("no_rope_layers")) turns.push_back(has != 0 ? 1 : 0);
  const std::int32_t every = json.integer("no_rope_layer_interval", 4);
  if (turns.empty()) {
    for (std::int32_t l = 0; l < config.layers; ++l) turns.push_back((l + 1) % every != 0 ? 1 : 0);
  } else if (std::ssize(turns) < config.layers) {
    return json.refuse("no_rope_layers", fmt::format("{} entries", config.layers),
                       fmt::format("{}", turns.size()), ErrorCode::malformed);
  }
  turns.resize(static_cast<std::size_t>(config.layers));
  split_layers(config, turns, {"no rope", "rope"});
  for (LayerGroupConfig& group : config.groups) {
    if (turns[static_cast<std::size_t>(group.layers.front())] == 0)
      group.rope = no_rope(group.rope);
  }
}

}  // namespace lathe
