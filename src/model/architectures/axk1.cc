// A.X-K1: DeepSeek V3's layers, with a norm of what the experts of a layer add.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_axk1(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config, {.dense_layers = 1, .draft_layers = 0});
  config.norms.experts_out = "post_mlp_layernorm";
}

}  // namespace lathe
