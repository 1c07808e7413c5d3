// GLM-5: DeepSeek V3.2's attention, but the indexer's RoPE pairs neighbours, and some layers reuse
// the selection of an earlier one (arXiv 2603.12201).
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_glm_moe_dsa(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config, {.q_lora = 2048, .groups = 1, .top_groups = 1});
  parse_indexer(json, config, RopePairing::interleaved);
  parse_indexer_types(json, config);
}

}  // namespace lathe
