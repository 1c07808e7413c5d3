// Llama 2 and 3: grouped-query attention, dense feed-forward.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_llama(ConfigReader& json, ModelConfig& config) {
  parse_gqa(json, config, {});
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  json.only_false("mlp_bias");
}

}  // namespace lathe
