// Ministral 3: Mistral with YaRN, and queries that grow with the logarithm of their position from
// the original context on (llama_4_scaling_beta).
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_ministral3(ConfigReader& json, ModelConfig& config) {
  constexpr double kBeta = 0.1;
  const YarnConfig yarn{.factor = 16, .original_context = 16384, .mscale_all_dim = 1};
  auto rope = json.object(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const double beta = rope ? rope->number("llama_4_scaling_beta", 0) : kBeta;
  if (rope) json.adopt(*rope);
  // transformers' class scales RoPE where config.json says nothing of it.
  parse_gqa_dims(json, config, {.kv_heads = 8, .head_dim = 128},
                 {.default_theta = rope ? 10000 : 1e6, .default_yarn = yarn});
  LayerGroupConfig& layers = config.all_layers();
  const RopeConfig& table = layers.rope;
  if (beta != 0 && !table.yarn) {
    json.refuse("rope_type", "yarn with llama_4_scaling_beta", "another type");
  }
  if (beta < 0) json.refuse("llama_4_scaling_beta", "0 or more", std::to_string(beta));
  if (beta > 0 && table.yarn) layers.query_growth = {beta, table.yarn->original_context};
  if (table.dim != layers.problem.head_dim) {
    json.refuse("partial_rotary_factor", "1: all of a query grows", std::to_string(table.dim));
  }
  if (json.has("sliding_window")) {
    set_windows(json, config,
                std::vector<std::uint8_t>(static_cast<std::size_t>(config.layers), 1));
  }
}

}  // namespace lathe
