// Qwen 3 with experts: Qwen 3's attention, softmax router without groups or shared experts.
#include <fmt/format.h>

#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_qwen3_moe(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 4});
  // transformers' class has one window for all layers: it reads neither max_window_layers nor
  // layer_types, which may only agree.
  const bool slides = json.flag("use_sliding_window", false) && !json.null("sliding_window");
  const std::vector<std::uint8_t> sliding(static_cast<std::size_t>(config.layers), slides ? 1 : 0);
  const std::vector<std::uint8_t> types = parse_layer_types(json, config);
  for (std::size_t l = 0; l < types.size(); ++l) {
    if (types[l] == sliding[l]) continue;
    json.refuse(fmt::format("layer_types[{}]", l),
                slides ? "sliding_attention, as use_sliding_window is true"
                       : "full_attention, as use_sliding_window is false",
                slides ? "full_attention" : "sliding_attention");
    break;
  }
  set_windows(json, config, sliding);
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.qk_norm = QkNorm::heads;
  MoeConfig& moe = config.moe;
  if (!set_expert_layers(json, config)) return;
  moe.experts =
      json.integer(json.first_of({"num_experts", "num_local_experts"}), std::nullopt, 1, 4096);
  moe.ffn = json.integer("moe_intermediate_size", std::nullopt, 1, ConfigReader::kMaxWidth);
  moe.top_k = json.integer("num_experts_per_tok", std::nullopt, 1, moe.experts);
  moe.scoring = RouterScoring::softmax;
  moe.normalize = json.flag("norm_topk_prob", false);
}

}  // namespace lathe
