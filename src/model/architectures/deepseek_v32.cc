// DeepSeek V3.2 (arXiv 2512.02556): V3 with an indexer in every layer. The indexer's RoPE pairs
// halves while the latent's pairs neighbours.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_deepseek_v32(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config, {});
  parse_indexer(json, config, RopePairing::split_half);
}

}  // namespace lathe
