// Ministral 3: Mistral with YaRN, and queries that grow with the logarithm of their position from
// the original context on (llama_4_scaling_beta).
#include "model/config/config_gqa.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_ministral3(ConfigReader& json, ModelConfig& config) {
  const YarnConfig yarn{.factor = 16, .original_context = 16384, .mscale_all_dim = 1};
  const bool given =
      json.object(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling").has_value();
  // transformers' class scales RoPE where config.json says nothing of it.
  parse_gqa_dims(json, config, {.kv_heads = 8, .head_dim = 128},
                 {.default_theta = given ? 10000 : 1e6, .default_yarn = yarn});
  parse_query_growth(json, config, 0.1);
  const LayerGroupConfig& layers = config.all_layers();
  if (layers.rope.dim != layers.problem.head_dim) {
    json.refuse("partial_rotary_factor", "1: all of a query grows",
                std::to_string(layers.rope.dim));
  }
  if (json.has("sliding_window")) {
    set_windows(json, config,
                std::vector<std::uint8_t>(static_cast<std::size_t>(config.layers), 1));
  }
}

}  // namespace lathe
