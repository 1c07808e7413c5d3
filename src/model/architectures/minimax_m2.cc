// MiniMax M2: half of each head rotates, RMSNorm over all heads of q and of k, sigmoid router
// without groups under Mixtral's names.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_minimax_m2(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 8, .head_dim = 128},
                 {.default_theta = 5e6, .reads_share = true});
  const bool norms = json.flag("use_qk_norm", true);
  if (norms) json.only("qk_norm_type", "per_layer");
  config.qk_norm = norms ? QkNorm::whole : QkNorm::none;
  for (const std::int32_t type : json.integers("attn_type_list")) {
    if (type != 1) json.refuse("attn_type_list", "1: softmax attention", std::to_string(type));
  }
  MoeConfig& moe = config.moe;
  moe.experts = json.integer("num_local_experts", 256, 1, 4096);
  moe.ffn = config.ffn;
  moe.top_k = json.integer("num_experts_per_tok", 8, 1, moe.experts);
  json.only("scoring_func", "sigmoid");
  moe.scoring = RouterScoring::sigmoid;
  moe.correction_bias = json.flag("use_routing_bias", true);
  moe.normalize = true;
  moe.names = kMixtralExperts;
  moe.names.correction_bias = "e_score_correction_bias";
  moe.layer_has_experts.assign(static_cast<std::size_t>(config.layers), 1);
  if (json.has("shared_intermediate_size") && json.integer("shared_intermediate_size", 0, 0) != 0) {
    json.refuse("shared_intermediate_size", "0: no shared experts", "another width");
  }
  // Draft layers, which the published files announce and do not have.
  config.draft_layers = 0;
}

}  // namespace lathe
