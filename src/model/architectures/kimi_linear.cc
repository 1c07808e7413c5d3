// Kimi-Linear (arXiv 2510.26692): layers of Kimi delta attention for each one of latent attention,
// which knows no positions; DeepSeek V3's router and experts under Mixtral's names.
#include "model/config/config_delta.h"
#include "model/config/config_gqa.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_kimi_linear(ConfigReader& json, ModelConfig& config) {
  const MlaDefaults defaults{.q_lora = 0,
                             .groups = 1,
                             .top_groups = 1,
                             .dense_layers = 1,
                             .routed_scale = 2.446,
                             .draft_layers = 0};
  parse_mla(json, config, defaults);
  LayerGroupConfig& group = config.all_layers();
  group.rope = no_rope(group.rope);
  if (!json.flag("mla_use_nope", true)) {
    json.refuse("mla_use_nope", "true: latent attention without RoPE", "false");
  }
  json.only("moe_router_activation_func", "sigmoid");
  config.moe.names = kMixtralExperts;
  config.moe.names.alone = "mlp.";
  parse_kimi_delta(json, config);
}

}  // namespace lathe
