// Mixtral (arXiv 2401.04088): Mistral's attention, softmax router over experts of its own names.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_mixtral(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 8}, {.default_theta = 1e6});
  if (json.has("sliding_window")) {
    config.all_layers().problem.window = json.integer("sliding_window");
  }
  MoeConfig& moe = config.moe;
  moe.experts = json.integer("num_local_experts", 8, 1, 4096);
  moe.ffn = config.ffn;
  moe.top_k = json.integer("num_experts_per_tok", 2, 1, moe.experts);
  // The softmax over the chosen logits equals that over all, renormalised.
  moe.scoring = RouterScoring::softmax;
  moe.names = kMixtralExperts;
  moe.layer_has_experts.assign(static_cast<std::size_t>(config.layers), 1);
}

}  // namespace lathe
