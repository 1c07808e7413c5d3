// Sarvam 105B: DeepSeek V3's layers, one of them dense, with q in one projection and a router
// without groups. `head_dim` and `q_head_dim` of its files say nothing more: they are sums of other
// keys.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_sarvam_mla(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config,
            {.q_lora = 0, .groups = 1, .top_groups = 1, .dense_layers = 1, .draft_layers = 0});
}

}  // namespace lathe
