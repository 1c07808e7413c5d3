// Granite 3 and 4 (dense): Llama's layers with four scalars.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

// A residual state that is kept divided by residual_multiplier m needs no multiplication of what
// parts add: its norms are the same if eps is divided by m^2.
void parse_granite(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {});
  const auto scalar = [&](std::string_view key) { return json.number(key, kFactorRange, 1); };
  const double residual = scalar("residual_multiplier");
  config.all_layers().problem.scale = static_cast<float>(scalar("attention_multiplier"));
  config.embedding_scale = static_cast<float>(scalar("embedding_multiplier") / residual);
  config.norm_eps = static_cast<float>(double{config.norm_eps} / (residual * residual));
  config.logit_scale = static_cast<float>(1 / scalar("logits_scaling"));
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  json.only_false("mlp_bias");
}

}  // namespace lathe
