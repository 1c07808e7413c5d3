#include "model/config/config_gqa.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/text/quote.h"

namespace lathe {

std::vector<std::uint8_t> parse_layer_types(ConfigReader& json, const ModelConfig& config) {
  std::vector<std::uint8_t> sliding;
  const std::vector<std::string> types = json.texts("layer_types");
  if (types.empty()) return sliding;
  for (std::size_t l = 0; l < types.size(); ++l) {
    const std::string& t = types[l];
    if (t != "full_attention" && t != "sliding_attention") {
      json.refuse(fmt::format("layer_types[{}]", l), "full_attention or sliding_attention",
                  quote(t));
    }
    sliding.push_back(t == "sliding_attention" ? 1 : 0);
  }
  if (std::ssize(sliding) != config.layers) {
    json.refuse("layer_types", fmt::format("{} entries", config.layers),
                fmt::format("{}", sliding.size()), ErrorCode::malformed);
    sliding.resize(static_cast<std::size_t>(config.layers));
  }
  return sliding;
}

void set_windows(ConfigReader& json, ModelConfig& config, const std::vector<std::uint8_t>& sliding,
                 std::int32_t absent) {
  const auto windowed = std::ranges::count(sliding, 1);
  if (windowed == 0) return;
  const bool null = json.null("sliding_window");
  const std::int32_t window =
      json.integer("sliding_window", null ? std::nullopt : std::optional(absent));
  if (windowed == config.layers) {
    config.all_layers().problem.window = window;
    return;
  }
  split_layers(config, sliding, {"full", "window"});
  for (LayerGroupConfig& group : config.groups) {
    if (sliding[static_cast<std::size_t>(group.layers.front())] != 0) group.problem.window = window;
  }
}

void split_layers(ModelConfig& config, const std::vector<std::uint8_t>& flags,
                  std::array<std::string_view, 2> names) {
  const auto set = std::ranges::count(flags, 1);
  if (set == 0 || set == config.layers) return;
  const LayerGroupConfig all = config.all_layers();
  config.groups.clear();
  for (const std::uint8_t has : {flags.front(), static_cast<std::uint8_t>(1 - flags.front())}) {
    LayerGroupConfig& group = config.groups.emplace_back(all);
    group.name = names[has];
    std::erase_if(group.layers,
                  [&](std::int32_t l) { return flags[static_cast<std::size_t>(l)] != has; });
  }
}

bool set_expert_layers(ConfigReader& json, ModelConfig& config) {
  std::vector<std::uint8_t>& has_experts = config.moe.layer_has_experts;
  has_experts.assign(static_cast<std::size_t>(config.layers), 0);
  const std::int32_t every = json.integer("decoder_sparse_step", 1);
  const std::vector<std::int32_t> dense = json.integers("mlp_only_layers");
  for (std::int32_t l = 0; l < config.layers; ++l) {
    const bool has = (l + 1) % every == 0 && std::ranges::count(dense, l) == 0;
    has_experts[static_cast<std::size_t>(l)] = has ? 1 : 0;
  }
  return std::ranges::count(has_experts, 1) > 0;
}

std::vector<std::uint8_t> parse_rope_layers(ConfigReader& json, const ModelConfig& config) {
  std::vector<std::uint8_t> turns;
  for (const std::int32_t has : json.integers("no_rope_layers")) turns.push_back(has != 0 ? 1 : 0);
  const std::int32_t every = json.integer("no_rope_layer_interval", 4);
  if (turns.empty()) {
    for (std::int32_t l = 0; l < config.layers; ++l) turns.push_back((l + 1) % every != 0 ? 1 : 0);
  } else if (std::ssize(turns) < config.layers) {
    json.refuse("no_rope_layers", fmt::format("{} entries", config.layers),
                fmt::format("{}", turns.size()), ErrorCode::malformed);
  }
  turns.resize(static_cast<std::size_t>(config.layers));
  return turns;
}

RopeConfig no_rope(const RopeConfig& rope) {
  return {.dim = rope.dim, .pairing = rope.pairing, .pairs = 0};
}

void parse_gqa_dims(ConfigReader& json, ModelConfig& config, const GqaDefaults& defaults,
                    RopeKeys keys) {
  const auto absent = [&](std::string_view key, std::int32_t of_class, std::int32_t of_null) {
    return of_class == 0 || json.null(key) ? of_null : of_class;
  };
  const std::int32_t heads = json.integer("num_attention_heads", std::nullopt, 1, 1024);
  const std::int32_t kv_heads = json.integer(
      "num_key_value_heads", absent("num_key_value_heads", defaults.kv_heads, heads), 1, 1024);
  const std::int32_t head = absent("head_dim", defaults.head_dim, 0);
  if (!json.has("head_dim") && head == 0 && config.hidden % heads != 0) {
    json.refuse("num_attention_heads", fmt::format("a divisor of hidden_size ({})", config.hidden),
                fmt::format("{}", heads), ErrorCode::malformed, "or give head_dim");
  }
  const std::int32_t head_dim =
      json.integer("head_dim", head != 0 ? head : std::max(1, config.hidden / heads), 1, 1024);
  LayerGroupConfig& group = config.all_layers();
  group.problem = gqa_problem(heads, kv_heads, head_dim);
  keys.of_heads = true;
  group.rope = parse_rope(json, head_dim, RopePairing::split_half, keys);
}

void parse_gqa(ConfigReader& json, ModelConfig& config, const GqaDefaults& defaults) {
  parse_gqa_dims(json, config, defaults);
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  const bool slides = json.flag("use_sliding_window", false);
  // transformers has no window then, and fails at the first layer that wants one.
  if (!slides && std::ranges::count(sliding, 1) > 0) {
    json.refuse("use_sliding_window", "true with sliding layers in layer_types", "false");
  }
  if (sliding.empty() && slides && !json.null("sliding_window")) {
    const std::int32_t first = json.integer("max_window_layers", 28, 0);
    for (std::int32_t l = 0; l < config.layers; ++l) sliding.push_back(l >= first ? 1 : 0);
  }
  set_windows(json, config, sliding);
}

}  // namespace lathe
