// GLM-4.5, 4.6 and 4.7: grouped-query attention of which half rotates, DeepSeek V3's router and
// experts (arXiv 2508.06471).
#include "model/config/config_gqa.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_glm4_moe(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 8}, {.partial = 0.5, .reads_share = true});
  config.attention_bias = json.flag("attention_bias", false);
  config.qk_norm = json.flag("use_qk_norm", false) ? QkNorm::heads : QkNorm::none;
  parse_v3_experts(json, config,
                   {.groups = 1, .top_groups = 1, .dense_layers = 1, .routed_scale = 1});
  config.draft_layers =
      json.integer(json.first_of({"num_nextn_predict_layers", "num_mtp_layers"}), 1, 0, 1024);
}

}  // namespace lathe
