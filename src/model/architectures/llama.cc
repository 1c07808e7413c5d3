// Llama 2 and 3: grouped-query attention, dense feed-forward.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_llama(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {});
  set_windows(json, config, parse_layer_types(json, config));
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  json.only_false("mlp_bias");
}

}  // namespace lathe
