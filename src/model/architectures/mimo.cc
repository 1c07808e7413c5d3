// MiMo 7B: Qwen 2 with draft layers (model.mtp_layers), which are not read.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_mimo(ConfigReader& json, ModelConfig& config) {
  parse_gqa(json, config, {.kv_heads = 32});
  config.attention_bias = json.flag("attention_bias", true);
}

}  // namespace lathe
