// A.X-K2: DeepSeek V3.2's attention with a gate of its output, which comes from the compressed
// query; the inputs of attention and of experts have gates of low rank after their norms.
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {

void parse_axk2(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config,
            {.q_lora = 384,
             .groups = 1,
             .top_groups = 1,
             .null_groups = true,
             .dense_layers = 1,
             .draft_layers = 0});
  parse_indexer(json, config, RopePairing::split_half);
  config.output_gate = OutputGate::with_q_b;
  config.norms.gate_rank = json.integer("gated_norm_rank", 16, 1, 1024);
}

}  // namespace lathe
