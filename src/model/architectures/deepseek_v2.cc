// DeepSeek V2 (arXiv 2405.04434): dense latent attention, and a softmax router without bias, which
// ranks a group by its best expert.
#include "io/text/quote.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_deepseek_v2(ConfigReader& json, ModelConfig& config) {
  const MlaDefaults defaults{.groups = 0,
                             .top_groups = 0,
                             .dense_layers = 0,
                             .shared = 2,
                             .routed_scale = 1,
                             .draft_layers = 0};
  parse_mla_attention(json, config, defaults);
  if (!parse_expert_sizes(json, config, defaults)) return;
  MoeConfig& moe = config.moe;
  json.only("scoring_func", "softmax");
  moe.scoring = RouterScoring::softmax;
  moe.group_best = 1;
  const std::string method = json.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    parse_groups(json, moe, defaults);
  } else if (method != "greedy") {  // which ignores n_group and topk_group
    json.refuse("topk_method", "greedy or group_limited_greedy", quote(method));
  }
  // DeepSeek's code scales the weights or makes their sum 1, not both. transformers ignores the
  // key.
  moe.normalize = json.flag("norm_topk_prob", false) && moe.top_k > 1;
  if (moe.normalize) moe.scale = 1;
}

}  // namespace lathe
