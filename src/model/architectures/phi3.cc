// Phi 3 and 4: Llama's layers with q, k and v in one tensor, and gate and up in another; LongRoPE
// on a part of each head.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_phi3(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {}, {.reads_share = true});
  json.only_false("attention_bias");
  config.fused_qkv = config.fused_gate_up = true;
  if (json.has("sliding_window")) {
    config.all_layers().problem.window = json.integer("sliding_window");
  }
}

}  // namespace lathe
