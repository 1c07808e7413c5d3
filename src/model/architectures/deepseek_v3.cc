// DeepSeek V3 (arXiv 2412.19437): dense latent attention, grouped sigmoid router.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_deepseek_v3(ConfigReader& json, ModelConfig& config) { parse_mla(json, config, {}); }

}  // namespace lathe
