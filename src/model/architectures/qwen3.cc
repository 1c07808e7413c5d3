// Qwen 3: a head width of its own, and RMSNorm on each head of q and k before RoPE.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_qwen3(ConfigReader& json, ModelConfig& config) {
  parse_gqa(json, config, {.kv_heads = 32, .head_dim = 128});
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.qk_norm = QkNorm::heads;
}

}  // namespace lathe
