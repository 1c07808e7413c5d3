// OLMo 2 (arXiv 2501.00656) and 3: norms of what attention and feed-forward add, none before them;
// RMSNorm over all heads of q and of k. OLMo 3 has windows, in which RoPE is not scaled.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

void parse_olmo(ConfigReader& json, ModelConfig& config, const RopeKeys& rope) {
  parse_gqa_dims(json, config, {}, rope);
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.qk_norm = QkNorm::whole;
  config.norms = kOutputNorms;
}

}  // namespace

void parse_olmo2(ConfigReader& json, ModelConfig& config) { parse_olmo(json, config, {}); }

void parse_olmo3(ConfigReader& json, ModelConfig& config) {
  parse_olmo(json, config, {.layer_type = "full_attention", .default_theta = 5e5});
  const RopeConfig local = parse_rope(
      json, config.all_layers().problem.head_dim, RopePairing::split_half,
      {.layer_type = "sliding_attention", .default_theta = 5e5, .scaled = false, .of_heads = true});
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  for (std::int32_t l = 0; std::ssize(sliding) < config.layers; ++l) {
    sliding.push_back((l + 1) % 4 != 0 ? 1 : 0);
  }
  set_windows(json, config, sliding);
  for (LayerGroupConfig& group : config.groups) {
    if (group.problem.window > 0) group.rope = local;
  }
}

}  // namespace lathe
