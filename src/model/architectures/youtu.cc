// Youtu-LLM: DeepSeek V3's latent attention in dense layers, with tied embeddings.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_youtu(ConfigReader& json, ModelConfig& config) {
  parse_mla_attention(json, config, {.draft_layers = 0});
  config.tied_embeddings = json.flag("tie_word_embeddings", true);
  json.absent("n_routed_experts", "nothing: every layer of Youtu is dense");
}

}  // namespace lathe
