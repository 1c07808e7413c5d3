// Seed-OSS: Llama's layers with heads of their own width, and biases on q, k and v.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_seed_oss(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 8, .head_dim = 128});
  config.attention_bias = json.flag("attention_bias", true);
  config.attention_out_bias = json.flag("attention_out_bias", false);
  json.only_false("mlp_bias");
}

}  // namespace lathe
