// Mistral Small 4: DeepSeek V3's latent attention with a latent of 256 and queries that grow with
// their position (llama_4_scaling_beta); a softmax router.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_mistral4(ConfigReader& json, ModelConfig& config) {
  const MlaDefaults defaults{
      .q_lora = 1024,
      .groups = 1,
      .top_groups = 1,
      .dense_layers = 0,
      .routed_scale = 1,
      .draft_layers = 0,
      .rotary_share = true,
      .yarn = YarnConfig{.factor = 128, .original_context = 8192, .mscale_all_dim = 1}};
  parse_mla_attention(json, config, defaults);
  parse_query_growth(json, config, 0.1);
  if (!parse_expert_sizes(json, config, defaults)) return;
  json.only("scoring_func", "softmax");
  config.moe.scoring = RouterScoring::softmax;
  config.moe.normalize = json.flag("norm_topk_prob", true);
  parse_groups(json, config.moe, defaults);
}

}  // namespace lathe
