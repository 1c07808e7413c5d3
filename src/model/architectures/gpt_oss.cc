// gpt-oss (arXiv 2508.10925): attention sinks, a window in every other layer, biases throughout,
// and experts stored in one tensor, in MXFP4 or unquantised.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_gpt_oss(ConfigReader& json, ModelConfig& config) {
  // transformers' class scales RoPE where config.json says nothing of it.
  const YarnConfig yarn{
      .factor = 32, .original_context = 4096, .mscale_all_dim = 0, .truncate = false};
  parse_gqa_dims(json, config, {.kv_heads = 8, .head_dim = 64},
                 {.default_theta = 150000, .default_yarn = yarn});
  config.all_layers().problem.sink = true;
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  if (sliding.empty()) {
    for (std::int32_t l = 0; l < config.layers; ++l) sliding.push_back(l % 2 == 0 ? 1 : 0);
  }
  set_windows(json, config, sliding, 128);
  config.attention_bias = json.flag("attention_bias", true);
  config.attention_out_bias = config.attention_bias;

  MoeConfig& moe = config.moe;
  moe.experts =
      json.integer(json.first_of({"num_local_experts", "num_experts"}), std::nullopt, 1, 4096);
  moe.ffn = config.ffn;
  moe.top_k = json.integer(json.first_of({"num_experts_per_tok", "experts_per_token"}),
                           std::nullopt, 1, moe.experts);
  // The softmax over the chosen logits equals that over all, renormalised.
  moe.scoring = RouterScoring::softmax;
  moe.normalize = true;
  moe.stacked = true;
  moe.layer_has_experts.assign(static_cast<std::size_t>(config.layers), 1);
  config.activation = {
      .kind = ActivationKind::clamped_swiglu,
      .alpha = static_cast<float>(json.number("swiglu_alpha", kFactorRange, 1.702)),
      .limit = static_cast<float>(json.number("swiglu_limit", kFactorRange, 7))};
  for (const std::int32_t width : {config.hidden, config.ffn}) {
    if (config.mxfp4 && width % kMxBlock != 0) {
      json.refuse(width == config.hidden ? "hidden_size" : "intermediate_size",
                  "a multiple of 32, the block of MXFP4", std::to_string(width));
    }
  }
}

}  // namespace lathe
