// EXAONE 4 (arXiv 2507.11407): norms of what attention and feed-forward add, none before them;
// RMSNorm on each head of q and k; where layers have windows, those without have no RoPE.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_exaone4(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {});
  config.qk_norm = QkNorm::heads;
  config.norms = kOutputNorms;
  // Published files also have sliding_window_pattern, "LLLG", which agrees with layer_types.
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  if (json.null("sliding_window")) sliding.assign(static_cast<std::size_t>(config.layers), 0);
  if (sliding.empty()) {
    const std::int32_t pattern = json.integer("sliding_window_pattern", 4);
    for (std::int32_t l = 0; l < config.layers; ++l) {
      sliding.push_back((l + 1) % pattern != 0 ? 1 : 0);
    }
  }
  set_windows(json, config, sliding);
  if (json.null("sliding_window")) return;
  for (LayerGroupConfig& group : config.groups) {
    if (group.problem.window == 0) group.rope = no_rope(group.rope);
  }
}

}  // namespace lathe
