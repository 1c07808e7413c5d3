#include "model/config_gqa.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/quote.h"
#include "model/config_rope.h"

namespace lathe {
namespace {

// All layers of a plan share one attention problem, so a window is all layers' or none's.
void parse_window(ConfigReader& json, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.layers);
  const std::vector<std::string> types = json.texts("layer_types");
  std::size_t sliding = 0;
  if (!types.empty()) {
    if (types.size() != layers) {
      json.refuse("layer_types", fmt::format("{} entries", layers), fmt::format("{}", types.size()),
                  ErrorCode::malformed);
      return;
    }
    for (const std::string& t : types) {
      if (t == "sliding_attention") {
        ++sliding;
      } else if (t != "full_attention") {
        json.refuse("layer_types", "full_attention or sliding_attention", quote(t));
      }
    }
  } else if (json.flag("use_sliding_window", false) && json.has("sliding_window")) {
    // Qwen 2 and 3: layers from max_window_layers on.
    const std::int32_t first = json.integer("max_window_layers", 0, 0);
    sliding = static_cast<std::size_t>(std::max(0, config.layers - first));
  }
  if (sliding == 0) return;
  if (sliding != layers) {
    json.refuse("sliding_window", "a window in every layer or in none",
                fmt::format("{} of {} layers", sliding, layers));
    return;
  }
  config.all_layers().problem.window = json.integer("sliding_window");
}

}  // namespace

void parse_gqa(ConfigReader& json, ModelConfig& config) {
  const std::int32_t heads = json.integer("num_attention_heads", std::nullopt, 1, 1024);
  const std::int32_t kv_heads = json.integer("num_key_value_heads", heads, 1, 1024);
  if (!json.has("head_dim") && config.hidden % heads != 0) {
    json.refuse("num_attention_heads", fmt::format("a divisor of hidden_size ({})", config.hidden),
                fmt::format("{}", heads), ErrorCode::malformed, "or give head_dim");
  }
  const std::int32_t head_dim =
      json.integer("head_dim", std::max(1, config.hidden / heads), 1, 1024);
  LayerGroupConfig& group = config.all_layers();
  group.problem = gqa_problem(heads, kv_heads, head_dim);
  group.rope = parse_rope(json, head_dim, RopePairing::split_half);
  parse_window(json, config);
}

}  // namespace lathe
