// MiniCPM 3: dense layers with latent attention; RoPE pairs halves; three scalars.
#include <cmath>

#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

// As in Granite, the residual state is kept divided by the factor of what parts add.
void parse_minicpm3(ConfigReader& json, ModelConfig& config) {
  const std::int32_t heads = json.integer("num_attention_heads", std::nullopt, 1, 128);
  parse_mla_attention(json, config,
                      {.q_lora = 768,
                       .draft_layers = 0,
                       .v_head = std::max(1, config.hidden / heads),
                       .interleaved = false});
  const auto scalar = [&](std::string_view key, double absent, double of_null) {
    return json.null(key) ? of_null : json.number(key, kFactorRange, absent);
  };
  const double root = std::sqrt(config.layers);
  const double residual = scalar("scale_depth", 1.4, root) / root;
  config.embedding_scale = static_cast<float>(scalar("scale_emb", 12, 12) / residual);
  config.norm_eps = static_cast<float>(double{config.norm_eps} / (residual * residual));
  config.logit_scale =
      static_cast<float>(scalar("dim_model_base", 256, config.hidden) / config.hidden);
  config.tied_embeddings = json.flag("tie_word_embeddings", true);
}

}  // namespace lathe
