// Gemma 3, text: five layers with a window for each one without, each kind with its own RoPE; norms
// also after attention and feed-forward; norm weights are stored minus 1 (arXiv 2503.19786).
#include <cmath>

#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_gemma3(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 4, .head_dim = 256},
                 {.layer_type = "full_attention", .default_theta = 1e6});
  LayerGroupConfig& all = config.all_layers();
  all.problem.scale =
      static_cast<float>(1 / std::sqrt(json.integer("query_pre_attn_scalar", 256, 1, 1 << 20)));
  const RopeConfig local = parse_rope(json, all.problem.head_dim, all.rope.pairing,
                                      {.layer_type = "sliding_attention",
                                       .theta = "rope_local_base_freq",
                                       .default_theta = 10000,
                                       .scaled = false,
                                       .of_heads = true});
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  if (sliding.empty()) {
    const std::int32_t pattern = json.integer("sliding_window_pattern", 6);
    for (std::int32_t l = 0; l < config.layers; ++l) {
      sliding.push_back((l + 1) % pattern != 0 ? 1 : 0);
    }
  }
  set_windows(json, config, sliding);
  for (LayerGroupConfig& group : config.groups) {
    if (group.problem.window > 0) group.rope = local;
  }
  json.only("hidden_activation", "gelu_pytorch_tanh");
  json.absent("attn_logit_softcapping", "nothing: Gemma 3 caps no scores");
  json.absent("final_logit_softcapping", "nothing: Gemma 3 caps no logits");
  json.only_false("use_bidirectional_attention");
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.tied_embeddings = json.flag("tie_word_embeddings", true);
  config.qk_norm = QkNorm::heads;
  config.norms = {.attention_out = "post_attention_layernorm",
                  .ffn = "pre_feedforward_layernorm",
                  .ffn_out = "post_feedforward_layernorm"};
  config.norm_offset = 1;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.rounded_embedding_scale = true;
  config.activation.kind = ActivationKind::gelu_tanh;
}

}  // namespace lathe
