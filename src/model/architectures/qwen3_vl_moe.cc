// The text model of Qwen 3 VL with experts: Qwen 3 MoE, but one tensor holds all experts, and the
// weights of the chosen ones always add up to 1.
#include "model/config/registry.h"

namespace lathe {

void parse_qwen3_vl_moe(ConfigReader& json, ModelConfig& config) {
  parse_qwen3_moe(json, config);
  config.moe.stacked = config.moe.experts > 0;
  config.moe.halves = config.moe.stacked;
  config.moe.normalize = true;
}

}  // namespace lathe
