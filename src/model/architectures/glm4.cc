// GLM-4 (0414), dense: half of each head rotates, neighbours as pairs; norms before and after each
// part; gate and up in one tensor.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_glm4(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 2, .head_dim = 128},
                 {.partial = 0.5, .reads_share = true});
  config.all_layers().rope.pairing = RopePairing::interleaved;
  config.attention_bias = json.flag("attention_bias", true);
  config.fused_gate_up = true;
  config.norms = {.attention_out = "post_self_attn_layernorm", .ffn_out = "post_mlp_layernorm"};
}

}  // namespace lathe
