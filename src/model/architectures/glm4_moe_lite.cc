// GLM-4.7-Flash: DeepSeek V3's layers, one of them dense, with a router without groups.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_glm4_moe_lite(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config,
            {.q_lora = 768, .groups = 1, .top_groups = 1, .dense_layers = 1, .routed_scale = 1.8});
}

}  // namespace lathe
